"""`make e2e`: one real containerd and one koordra node for all tests of this folder.

What this machine cannot run is deselected, and the reason printed; whether it can is looked at only when such
tests are asked for, since that fetches packages. KOORDRA_E2E_SUITES="trixie" picks another Debian suite's
containerd.

A module that runs its tests on several runtimes has a fixture `containerd` of its own, with the suites as
parameters; `newer` is a build of one's own, below the folder that KOORDRA_E2E_NEWER names (usr/bin/containerd
and so on).
"""

from __future__ import annotations

import os
import platform
import subprocess
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
runtimes = pytest.StashKey[dict[str, Runtime]]()
_missing = pytest.StashKey[dict[str, str]]()


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
        return
    _find_other_runtimes(config, items)


def _find_other_runtimes(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The runtimes that parametrized tests name; those that cannot be had are deselected one by one."""
    found: dict[str, Runtime] = {}
    missing: dict[str, str] = {}
    for item in list(items):
        suite = getattr(item, "callspec", None) and item.callspec.params.get("containerd")
        if not suite:
            continue
        if suite not in found and suite not in missing:
            try:
                found[suite] = newer_runtime() if suite == "newer" else obtain(CACHE, suites=(suite,))
            except Unavailable as error:
                missing[suite] = str(error)
        if suite in missing:
            config.hook.pytest_deselected(items=[item])
            items.remove(item)
    config.stash[runtimes] = found
    config.stash[_missing] = missing


def runtime_of(config: pytest.Config) -> Runtime:
    """The runtime that `containerd` runs, for a module that wants one of its own."""
    return config.stash[_runtime]


def newer_runtime() -> Runtime:
    """A containerd of one's own, with the system's runc and busybox. Raises Unavailable."""
    folder = os.environ.get("KOORDRA_E2E_NEWER")
    if not folder:
        raise Unavailable("KOORDRA_E2E_NEWER names no build of containerd 2.2 or newer")
    base = obtain(CACHE, suites=RUNTIME_SUITES)
    root = Path(folder)
    version = subprocess.run(
        [root / "usr/bin/containerd", "--version"], capture_output=True, text=True, check=False
    ).stdout.split()
    for name in ("usr/sbin/runc", "usr/bin/busybox"):
        if not (root / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(base.busybox if name.endswith("busybox") else base.runc)
    return Runtime(root=root, suite="newer", version=version[2].removeprefix("v"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _reason in config.stash:
        terminalreporter.write_line(
            f"tests against a real containerd are deselected: {config.stash[_reason]}"
        )
    for suite, reason in config.stash.get(_missing, {}).items():
        terminalreporter.write_line(f"tests on runtime {suite!r} are deselected: {reason}")


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


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Debian's prometheus and promtool."""
    from tests.e2e import prometheus

    try:
        return prometheus.programs()
    except Unavailable as error:
        pytest.skip(f"no Prometheus of Debian's: {error}")
