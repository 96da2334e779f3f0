"""The real kubelet plugin on the fake library: whose labels, signals and requests make it let go of NVML.

The plugin is a process of its own, which reads this machine, and holds the fake's device node as the real
NVML holds /dev/nvidiactl.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.nvidia_driver.release_wanted import STATE_LABEL
from koordra.process.lifecycle import PARENT_VARIABLE
from koordra_devcluster.apiserver.server import ApiServer
from tests.fakes.node_claims import NODE
from tests.fakes.nvml_library import FakeNvml, build
from tests.patience import PATIENCE
from tests.unit.devcluster import manifests
from tests.unit.kubelet_plugin.running_plugin import wait_for
from tests.unit.native.test_fake_nvml import MACHINE

pytestmark = pytest.mark.slow

CLIENT = "nvidia.com/gpu.deploy.client"


@dataclass
class Node:
    """One with the plugin running; `start` starts another one on the same state."""

    folder: Path
    fake: FakeNvml
    client: KubeClient
    start: Callable[[], subprocess.Popen[bytes]]
    plugin: subprocess.Popen[bytes]

    @property
    def state(self) -> Path:
        return self.folder / "k/plugins/koordra.io"

    def label(self, name: str, value: str) -> None:
        self.client.patch(kinds.NODES, NODE, {"metadata": {"labels": {name: value}}})

    def holds(self) -> bool:
        return self.fake.holders() == [self.plugin.pid]

    def mapped(self) -> set[int]:
        """The files, by inode, of which the plugin has libnvidia-ml mapped."""
        try:
            lines = Path(f"/proc/{self.plugin.pid}/maps").read_text().splitlines()
        except OSError:  # it has ended
            return set()
        return {int(line.split()[4]) for line in lines if "libnvidia-ml" in line}

    def has_let_go(self) -> bool:
        return self.fake.holders() == [] and not self.mapped()

    def command(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "koordra", "node", *arguments, "--state-dir", str(self.state)],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "driver-release.json").read_text())
        return found


@contextmanager
def running_node(
    tmp_path: Path, place: Path, *, option: str = "--driver-root", command: Sequence[str] = ()
) -> Iterator[Node]:
    """`place`: where the plugin finds the driver, `option`: how it is told so; `command`: what starts it."""
    fake = FakeNvml(tmp_path, build())
    fake.describe(MACHINE)
    fake.order()
    with tempfile.TemporaryDirectory(prefix="k") as name:
        folder = Path(name)
        server = ApiServer(folder / "api")
        server.start()
        server.write_kubeconfig(folder / "kubeconfig")
        client = new_client(str(folder / "kubeconfig"))
        client.create(kinds.NODES, manifests.node(NODE))
        started: list[subprocess.Popen[bytes]] = []

        def start() -> subprocess.Popen[bytes]:
            places = {"--kubelet-root": "k", "--cdi-dir": "cdi", "--kubeconfig": "kubeconfig"}
            options = [text for key, each in places.items() for text in (key, str(folder / each))]
            plugin = [sys.executable, "-m", "koordra", "kubelet-plugin", "--node-name", NODE]
            started.append(
                subprocess.Popen(
                    [*command, *plugin, *options, option, str(place)],
                    env={**fake.environment, PARENT_VARIABLE: str(os.getpid())},
                    stderr=subprocess.DEVNULL,
                )
            )
            return started[-1]

        (folder / "k/plugins_registry").mkdir(parents=True)
        try:
            node = Node(folder, fake, client, start, start())
            assert wait_for((node.state / "driver-release.json").exists, PATIENCE)
            yield node
        finally:
            for process in started:
                process.kill()
                process.wait()
            server.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    install(tmp_path / "driver")
    with running_node(tmp_path, tmp_path / "driver") as node:
        assert wait_for(node.holds, PATIENCE)
        yield node


def install(root: Path) -> Path:
    """A driver's root; its library."""
    (root / "usr/lib64").mkdir(parents=True)
    return Path(shutil.copy(build() / "libnvidia-ml.so.1", root / "usr/lib64"))


def test_the_operators_label_closes_nvml_and_its_end_opens_it(node: Node) -> None:
    node.label(CLIENT, "paused-for-driver-upgrade")
    assert wait_for(node.has_let_go, PATIENCE)
    assert wait_for(lambda: node.report()["nvmlClosed"], PATIENCE)
    assert node.report()["phase"] == "Closing"

    node.label(CLIENT, "true")
    assert wait_for(node.holds, PATIENCE)


def test_a_plugin_that_starts_during_an_upgrade_opens_nothing(node: Node) -> None:
    node.label(STATE_LABEL, "pod-restart-required")
    assert wait_for(node.has_let_go, PATIENCE)
    assert wait_for(lambda: node.report()["phase"] == "Released", PATIENCE)
    node.plugin.kill()
    node.plugin.wait()
    node.plugin = node.start()

    seen = []
    while not any((node.folder / "k/plugins_registry").iterdir()):
        seen += node.fake.holders()
    assert not seen

    node.label(STATE_LABEL, "upgrade-done")
    assert wait_for(node.holds, PATIENCE)


def test_the_operators_command_closes_nvml_and_takes_it_back(node: Node) -> None:
    code, told = node.command("release-driver")
    assert (code, told) == (0, "Released: NVML is closed\n")
    assert node.has_let_go()
    assert (node.state / "release-driver").stat().st_mode & 0o777 == 0o600

    code, told = node.command("release-driver", "--output", "json")  # it stands already
    assert (code, json.loads(told)["released"]) == (0, True)

    assert node.command("release-driver", "--resume")[0] == 0
    assert wait_for(node.holds, PATIENCE)


def test_sigterm_closes_nvml(node: Node) -> None:
    node.plugin.terminate()

    assert node.plugin.wait(PATIENCE) == 0
    assert node.has_let_go()


def test_without_a_plugin_the_command_says_so(node: Node) -> None:
    node.plugin.kill()
    node.plugin.wait()

    code, told = node.command("release-driver", "--timeout", "1")

    assert code == 1
    assert "has not answered" in told


class Host:
    """A host's `/` in a mount namespace of its own, whose mounts show in those below it, as a runtime makes
    them for a pod whose volume has HostToContainer."""

    def __init__(self, root: Path) -> None:
        script = 'mount --bind "$1" "$1" && mount --make-shared "$1" && echo made && exec sleep infinity'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(root)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        with self._process.stdout as told:
            if told.readline() != b"made\n":
                pytest.skip("mounts cannot be made here")
        self._root = root
        self._inside = ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt"]
        self.pod = [*self._inside, "unshare", "--mount", "--propagation", "slave"]

    def mount(self, root: Path, place: str = "run/nvidia/driver", *, options: str = "bind") -> None:
        (self._root / place).mkdir(parents=True, exist_ok=True)
        subprocess.run([*self._inside, "mount", "-o", options, root, self._root / place], check=True)

    def unmount(self) -> None:
        subprocess.run([*self._inside, "umount", "--lazy", self._root / "run/nvidia/driver"], check=True)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts need root and unshare")
def test_a_driver_container_comes_late_is_mounted_anew_and_goes(tmp_path: Path) -> None:
    """The one that restarts is of the same configuration: nothing is unloaded, and its root is another. In
    the end there is an installer's folder on a read-only file system."""
    first, second = (install(tmp_path / name) for name in ("first", "second"))
    (tmp_path / "host").mkdir()
    with (
        contextlib.closing(Host(tmp_path / "host")) as host,
        running_node(tmp_path, tmp_path / "host", option="--host-root", command=host.pod) as node,
    ):
        assert node.has_let_go()
        host.mount(tmp_path / "first")
        assert wait_for(node.holds, PATIENCE)
        assert node.mapped() == {first.stat().st_ino}

        node.label(CLIENT, "paused-for-driver-upgrade")
        assert wait_for(node.has_let_go, PATIENCE)
        host.unmount()
        host.mount(tmp_path / "second")
        node.label(CLIENT, "true")
        assert wait_for(node.holds, PATIENCE)
        assert node.mapped() == {second.stat().st_ino}

        host.unmount()
        assert wait_for(node.has_let_go, PATIENCE)

        host.mount(tmp_path / "first", "usr/local/nvidia", options="bind,ro")
        assert wait_for(node.holds, PATIENCE)
        assert node.mapped() == {first.stat().st_ino}
