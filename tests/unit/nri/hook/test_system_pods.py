"""Whose pods belong to the node: by namespace, by the kubelet's word, by priority; and what a tenant cannot
say."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.errors import ApiError, ApiUnreachable
from koordra.nri.hook.oci import Mount
from koordra.nri.hook.privileged import PrivilegedPolicy
from koordra.nri.hook.system_pods import REMEMBERED, LabelledNamespaces, SystemPods
from koordra.nri.service import Options, system_pods
from tests.patience import PATIENCE
from tests.unit.nri.node_state import container

UID = "pod-uid"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Api:
    """Pods by name, and the labelled namespaces with their watch."""

    def __init__(self, *, labelled: tuple[str, ...] = ()) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.labelled = labelled
        self.away = False
        self.asked = 0
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    def pod(self, *, uid: str = UID, **spec: Any) -> None:
        self.pods["p"] = {"metadata": {"name": "p", "namespace": "team", "uid": uid}, "spec": spec}

    def get(self, kind: object, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        assert (kind, namespace) == (kinds.PODS, "team")
        self.asked += 1
        if self.away:
            raise ApiUnreachable("no route to host")
        return self.pods[name]

    def list(
        self, kind: object, *, field_selector: str, label_selector: str, each: Any
    ) -> tuple[list[Any], str]:
        assert (kind, field_selector) == (kinds.NAMESPACES, "")
        assert label_selector == "koordra.io/exempt=true"
        if self.away:
            raise ApiUnreachable("no route to host")
        return [each(_namespace(name)) for name in self.labelled], "1"

    def watch(self, _kind: object, *, label_selector: str, **_rest: Any) -> Iterator[tuple[str, Any]]:
        assert label_selector == "koordra.io/exempt=true"
        while True:
            try:
                yield self.events.get(timeout=0.05)
            except queue.Empty:
                yield "BOOKMARK", {}


VERSIONS = count(2)


def _namespace(name: str) -> dict[str, Any]:
    version = str(next(VERSIONS))
    return {"metadata": {"name": name, "resourceVersion": version, "labels": {"koordra.io/exempt": "true"}}}


def created(**fields: Any) -> Any:
    return container(**{"pod": "p", "pod_uid": UID, **fields})


def system(api: Api) -> SystemPods:
    return SystemPods(client=api)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- namespaces


def test_listed_and_labelled_namespaces_are_exempt() -> None:
    pods = SystemPods(frozenset({"kube-system"}), labelled=lambda: frozenset({"storage"}))
    assert "--exempt-namespace" in pods.exempt(created(namespace="kube-system"))
    assert "koordra.io/exempt" in pods.exempt(created(namespace="storage"))
    assert pods.exempt(created(namespace="team")) == ""


def test_labels_are_followed_and_remembered(tmp_path: Path) -> None:
    api, stop = Api(labelled=("storage",)), threading.Event()
    namespaces = LabelledNamespaces(api, tmp_path)  # type: ignore[arg-type]
    assert namespaces() == frozenset()
    namespaces.start(stop)
    try:
        eventually(lambda: namespaces() == {"storage"})
        api.events.put(("ADDED", _namespace("network")))
        eventually(lambda: namespaces() == {"storage", "network"})
        api.events.put(("DELETED", _namespace("storage")))
        eventually(lambda: namespaces() == {"network"})
        eventually(lambda: json.loads((tmp_path / REMEMBERED).read_text()) == ["network"])
    finally:
        stop.set()
    assert (tmp_path / REMEMBERED).stat().st_mode & 0o777 == 0o600


def test_after_a_reboot_without_the_api_the_last_labels_count(tmp_path: Path) -> None:
    """The network may be what starts."""
    (tmp_path / REMEMBERED).write_text('["network"]')
    api, stop = Api(), threading.Event()
    api.away = True
    namespaces = LabelledNamespaces(api, tmp_path)  # type: ignore[arg-type]
    namespaces.start(stop)
    try:
        assert namespaces() == {"network"}
        api.away = False
        eventually(lambda: namespaces() == frozenset())
    finally:
        stop.set()


@pytest.mark.parametrize("text", ["{", "{}", "7", "[" * 100_000])
def test_a_torn_memory_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / REMEMBERED).write_text(text)
    assert LabelledNamespaces(Api(), tmp_path)() == frozenset()  # type: ignore[arg-type]


def test_a_memory_that_others_can_write_exempts_nobody(tmp_path: Path) -> None:
    remembered = tmp_path / REMEMBERED
    remembered.write_text('["network"]')
    for mode, exempt in ((0o666, frozenset()), (0o600, frozenset({"network"}))):
        remembered.chmod(mode)
        assert LabelledNamespaces(Api(), tmp_path)() == exempt  # type: ignore[arg-type]
    remembered.rename(tmp_path / "elsewhere")
    remembered.symlink_to(tmp_path / "elsewhere")
    assert LabelledNamespaces(Api(), tmp_path)() == frozenset()  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------- monitors


@pytest.mark.parametrize(
    ("policy", "folder", "expected"),
    [
        (PrivilegedPolicy.REPORT, "/var/lib/kubelet/pod-resources", True),
        (PrivilegedPolicy.REPORT, "{kubelet}/pod-resources/", True),
        (PrivilegedPolicy.REPORT, "{kubelet}", False),
        (PrivilegedPolicy.REFUSE, "/var/lib/kubelet/pod-resources", False),
    ],
)
def test_whose_monitors_are_exempt(
    tmp_path: Path, policy: PrivilegedPolicy, folder: str, expected: bool
) -> None:
    """The state directory tells where this node's kubelet is."""
    api = Api()
    api.pod(priority=2_000_001_000, priorityClassName="system-node-critical")
    options = Options(
        node_name="n",
        state_dir=tmp_path / "plugins/koordra.io",
        socket_path=Path("/s"),
        plugin_index="90",
        exempt=frozenset(),
        privileged=policy,
        client=api,  # type: ignore[arg-type]
        quick_client=api,  # type: ignore[arg-type]
    )
    stop = threading.Event()
    stop.set()
    monitor = created(mounts=(Mount(folder.format(kubelet=tmp_path), "/pods", bind=True, read_only=True),))
    assert bool(system_pods(options, stop).exempt(monitor)) == expected


# -------------------------------------------------------------------------------------------- critical pods


@pytest.mark.parametrize("source", ["file", "http"])
def test_the_kubelets_own_pods_are_critical_without_the_api(source: str) -> None:
    """The kubelet writes the annotation over whatever the pod says."""
    pods = SystemPods()
    static = created(pod_annotations={"kubernetes.io/config.source": source})
    assert pods.starts(static) == "it is a static pod"
    # Running containers do not show the annotation; the runtime's list of pods does.
    pods = SystemPods()
    pods.note(UID, {"kubernetes.io/config.source": source})
    assert pods.critical(created()) == "it is a static pod"


@pytest.mark.parametrize(
    ("priority", "why"), [(2_000_000_000, True), (2_000_001_000, True), (1_000_000_000, False), (None, False)]
)
def test_priority_of_the_system_classes_is_critical(priority: int | None, why: bool) -> None:
    api = Api()
    api.pod(priority=priority, priorityClassName="system-node-critical")
    pods = system(api)
    assert pods.starts(created()) == ("its priority is system-node-critical" if why else "")
    pods.starts(created())
    assert api.asked == 1


def test_what_a_tenant_writes_makes_no_pod_critical() -> None:
    api = Api()
    api.pod(priority=0)
    own = {
        "kubernetes.io/config.source": "api",
        "scheduler.alpha.kubernetes.io/critical-pod": "",
        "kubernetes.io/config.mirror": "0123",
    }
    assert system(api).starts(created(pod_annotations=own, pod_labels={"koordra.io/exempt": "true"})) == ""


def test_the_priority_of_another_pod_under_the_name_does_not_count() -> None:
    api = Api()
    api.pod(uid="another", priority=2_000_001_000)
    assert system(api).starts(created()) == ""


def test_while_the_api_is_away_the_hosts_network_gets_the_benefit_of_the_doubt() -> None:
    api = Api()
    api.pod(priority=2_000_001_000, priorityClassName="system-node-critical")
    pods = system(api)
    api.away = True
    assert "does not tell its priority" in pods.starts(created(host_network=True))
    assert pods.starts(created()) == ""
    with pytest.raises(ApiError):
        pods.critical(created())
    api.away = False
    assert pods.starts(created()) == "its priority is system-node-critical"


def test_pods_that_come_and_go_for_ever_do_not_fill_the_memory() -> None:
    pods = SystemPods()
    for number in range(3000):
        pods.note(f"uid-{number}", {"kubernetes.io/config.source": "file"})
    assert len(pods._known) <= 1024
    assert pods.critical(created(pod_uid="uid-2999")) == "it is a static pod"


def test_without_access_to_the_api_priorities_are_not_known() -> None:
    assert SystemPods().starts(created(host_network=True)) == ""
