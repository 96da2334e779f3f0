"""`make e2e`: one real containerd and one koordra node for all tests of this folder.

What this machine cannot run is deselected, and the reason printed; whether it can is looked at only when such tests are
asked for, since that fetches packages. KOORDRA_E2E_SUITES="trixie" picks another Debian suite's containerd.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.containerd import Containerd
from tests.e2e.cri import compile_proto
from tests.e2e.debian import RUNTIME_SUITES, Runtime, Unavailable, obtain
from tests.e2e.node import KoordraNode, device_nodes_can_be_made

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "e2e"

_runtime = pytest.StashKey[Runtime]()
_reason = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After -m and -k: if any test is left that needs the runtime, get it, or deselect them all."""
    ours = [item for item in items if "containerd" in getattr(item, "fixturenames", ())]
    if not ours or config.option.collectonly:
        return
    try:
        config.stash[_runtime] = runtime_for_this_machine()
    except Unavailable as error:
        config.stash[_reason] = str(error)
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _reason in config.stash:
        terminalreporter.write_line(
            f"tests against a real containerd are deselected: {config.stash[_reason]}"
        )


def runtime_for_this_machine() -> Runtime:
    """Raises Unavailable."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        raise Unavailable(
            f"a container runtime needs Linux on x86-64 or arm64, this is {sys.platform} {platform.machine()}"
        )
    if os.geteuid() != 0:
        raise Unavailable("a container runtime needs root; run it with sudo")
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        if not device_nodes_can_be_made(Path(folder)):
            raise Unavailable(
                "device nodes cannot be made and opened here (no CAP_MKNOD, or a file system mounted nodev)"
            )
    return obtain(CACHE, suites=os.environ.get("KOORDRA_E2E_SUITES", "").split() or RUNTIME_SUITES)


@pytest.fixture(scope="session")
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """A running containerd with CDI and NRI on."""
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = Containerd(request.config.stash[_runtime], Path(folder), modules)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


@pytest.fixture(scope="session")
def node(containerd: Containerd) -> Iterator[KoordraNode]:
    """koordra's node side, registered with the runtime."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        koordra = KoordraNode(Path(folder), cdi=containerd.cdi, nri_socket=containerd.nri_socket)
        try:
            koordra.start()
            yield koordra
        finally:
            koordra.stop()
