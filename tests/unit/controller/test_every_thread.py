"""An error in any thread of the controller: the thread goes on, or the process ends. None is silently gone.

A whole controller with every option runs against an API server in memory; an exception is raised in each of
its threads in turn, wherever it is just then. What it was doing is a matter of chance, what becomes of it is
not. Threads that come later are tried like those that are named here.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache import changes
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.run import run, start_webhook
from koordra.controller.settings import Settings
from koordra.controller.webhook.cert_rotation import WebhookSettings
from koordra.metrics import Metrics
from koordra.process import lifecycle
from koordra.process.metrics_server import serve
from koordra.process.watchdog import Watchdog
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.fakes.streaming_api import StreamingApi
from tests.patience import PATIENCE
from tests.unit.autoscale.world import group

LOOPS: Final = frozenset(
    {
        "autoscale",
        "elastic-gpu",
        "training-jobs",
        "events",
        "kubelet-requeue",
        "lease",
        "legacy-upkeep",
        "metrics",
        "peer-annotations",
        "resource-classes",
        "watchdog",
        "webhook",
        "webhook-keys",
        "worker",
    }
)
"""Some that have to be there; besides there is one for each kind that is watched. `lease` is the main thread,
and `signals` stands in test_process."""


class Injected(Exception):
    """Knows in which threads it was raised."""

    raised: Final[set[int]] = set()

    def __init__(self) -> None:
        super().__init__("injected")
        self.raised.add(threading.get_ident())


class InjectedExit(SystemExit):
    """The same, of those that no `except Exception` takes."""

    def __init__(self) -> None:
        super().__init__("injected")
        Injected.raised.add(threading.get_ident())


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads for which the process would have ended; none of them sleeps for a minute."""
    found: list[str] = []
    monkeypatch.setattr(changes, "LOOK_AGAIN", 1.0)
    monkeypatch.setattr(lifecycle, "_running", [threading.Event()])
    monkeypatch.setattr(lifecycle, "end_failed", lambda: found.append(threading.current_thread().name))
    return found


@pytest.fixture
def api() -> StreamingApi:
    found = StreamingApi()
    found.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    found.create(NODES, node("n0"))
    found.create(RESOURCE_SLICES, gpu_slice("n0", 4))
    return found


@pytest.fixture
def threads(api: StreamingApi, failed: list[str]) -> Iterator[dict[str, threading.Thread]]:
    """Those of a controller that leads, by name."""
    before, stop, metrics = set(threading.enumerate()), threading.Event(), Metrics()
    watchdog = Watchdog(metrics)
    watchdog.start(stop)
    server = serve(metrics, "127.0.0.1:0")
    legacy = LegacySettings()
    webhook = start_webhook(
        api,  # type: ignore[arg-type]
        WebhookSettings("127.0.0.1:0", host="127.0.0.1"),
        metrics=metrics,
        stop=stop,
        legacy=legacy,
    )
    autoscale = AutoscaleSettings([group()])
    settings = Settings(
        "one", legacy=legacy, elastic_gpu=True, training_jobs=True, peer_annotations=True, autoscale=autoscale
    )
    main = threading.Thread(
        target=lambda: run(api, settings, stop=stop, metrics=metrics),  # type: ignore[arg-type]
        name="lease",
        daemon=True,
    )

    def started() -> dict[str, threading.Thread]:
        return {thread.name: thread for thread in threading.enumerate() if thread not in before}

    eventually(main.start)
    eventually(lambda: started().keys() >= LOOPS)
    api.create(RESOURCE_CLAIMS, claim("first"))
    api.create(PODS, pod("first", ["first"]))
    eventually(lambda: allocated(api, "first"))
    yield started()
    stop.set()
    main.join(PATIENCE)
    assert server is not None
    assert webhook is not None
    server.close()
    webhook.server_close()
    for thread in started().values():
        thread.join(PATIENCE)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while condition() is False:
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def allocated(api: StreamingApi, name: str) -> bool:
    return bool(objects.status_of(api.get(RESOURCE_CLAIMS, name)).get("allocation"))


def inject(thread: threading.Thread, error: type[BaseException]) -> None:
    assert thread.ident is not None
    Injected.raised.discard(thread.ident)
    asked = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
    assert asked == 1
    eventually(lambda: thread.ident in Injected.raised or not thread.is_alive())


@pytest.mark.long
@pytest.mark.parametrize("error", [Injected, InjectedExit])
def test_no_thread_of_the_controller_ends_unseen(
    api: StreamingApi, threads: dict[str, threading.Thread], failed: list[str], error: type[BaseException]
) -> None:
    watches = {name for name in threads if name.startswith("watch-")}
    assert len(watches) > 12
    for name in sorted(threads.keys() - {"lease"}):
        inject(threads[name], error)
        eventually(lambda name=name: threads[name].is_alive() or name in failed)  # type: ignore[misc]
    if error is Injected:
        assert not watches & set(failed), "a watch lists again"
        api.create(RESOURCE_CLAIMS, claim("second"))
        api.create(PODS, pod("second", ["second"]))
        eventually(lambda: "worker" in failed or allocated(api, "second"))
    else:
        assert watches <= set(failed), "nobody goes on after that"
