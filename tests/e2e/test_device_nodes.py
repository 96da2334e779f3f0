"""A claim's device nodes in a container with a user namespace of its own, which may not make nodes: real
runc, a device that it allows nobody by default, and the edits of a claim on a host without the node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.nvidia_driver.device_nodes import make_node, own_nodes, through_own_nodes
from koordra.topology.location import DeviceNode
from tests.e2e.conftest import runtime_of
from tests.e2e.containerd import Containerd

MISCELLANEOUS = 10
FIRST_USER = 200000
PATH = "/dev/koordra-test0"
"""Not on the host."""


@pytest.fixture
def device() -> DeviceNode:
    """One that anybody may open who has a node and the device cgroup's leave."""
    listed = (line.split() for line in Path("/proc/misc").read_text().splitlines())
    minors = {name: int(minor) for minor, name in listed}
    found = next((minors[name] for name in ("fuse", "loop-control") if name in minors), None)
    if found is None:
        pytest.skip("this kernel has neither /dev/fuse nor /dev/loop-control")
    return DeviceNode(PATH, MISCELLANEOUS, found)


class Bundle:
    """An OCI bundle of busybox, run by the runtime's runc."""

    def __init__(self, folder: Path, containerd: Containerd, config: pytest.Config) -> None:
        del containerd  # it makes sure that the programs are there
        self.folder, self._runtime = folder, runtime_of(config)
        for name in ("bin", "dev", "proc"):
            (folder / "rootfs" / name).mkdir(parents=True)
        shutil.copy(self._runtime.busybox.resolve(), folder / "rootfs/bin/busybox")
        (folder / "rootfs/bin/sh").symlink_to("busybox")
        subprocess.run([self._runtime.runc, "spec"], cwd=folder, check=True)

    def run(self, edits: ContainerEdits, *, own_users: bool) -> subprocess.CompletedProcess[str]:
        """Open the node at PATH for reading and writing."""
        spec: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        spec["process"].update(terminal=False, args=["sh", "-c", f"exec 3<>{PATH} && echo opened"])
        spec["mounts"] = [one for one in spec["mounts"] if not one["destination"].startswith("/sys")]
        spec["mounts"] += [
            {
                "destination": each.container_path,
                "source": each.host_path,
                "type": "bind",
                "options": [*each.options],
            }
            for each in edits.mounts
        ]
        kinds = ["pid", "ipc", "uts", "mount", *(["user"] if own_users else [])]
        numbers = [{"type": "c", "major": node.major, "minor": node.minor} for node in edits.device_nodes]
        spec["linux"] = {
            "namespaces": [{"type": kind} for kind in kinds],
            "devices": [
                {**number, "path": node.path, "fileMode": 0o666, "uid": 0, "gid": 0}
                for number, node in zip(numbers, edits.device_nodes, strict=True)
            ],
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}]
                + [{**number, "allow": True, "access": "rw"} for number in numbers]
            },
        }
        if own_users:
            for path in (self.folder / "rootfs", *(self.folder / "rootfs").rglob("*")):
                os.lchown(path, FIRST_USER, FIRST_USER)  # as a runtime maps the image's files
            mapped = [{"containerID": 0, "hostID": FIRST_USER, "size": 65536}]
            spec["linux"] |= {"uidMappings": mapped, "gidMappings": mapped}
        (self.folder / "config.json").write_text(json.dumps(spec))
        command = [self._runtime.runc, "--root", self.folder / "state", "run", f"koordra-{own_users}"]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def bundle(containerd: Containerd, request: pytest.FixtureRequest) -> Iterator[Bundle]:
    with tempfile.TemporaryDirectory(prefix="k") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Bundle(folder, containerd, request.config)


def test_a_number_alone_is_not_enough_in_a_user_namespace(bundle: Bundle, device: DeviceNode) -> None:
    edits = ContainerEdits(device_nodes=(device,))
    assert bundle.run(edits, own_users=False).stdout == "opened\n"
    done = bundle.run(edits, own_users=True)
    assert done.returncode != 0
    assert "no such file or directory" in done.stderr


@pytest.mark.parametrize("own_users", [False, True])
def test_a_node_of_the_claims_folder_can_be_opened(
    bundle: Bundle, device: DeviceNode, own_users: bool
) -> None:
    folder = bundle.folder / "claim"
    folder.mkdir(mode=0o755)
    edits = through_own_nodes(ContainerEdits(device_nodes=(device,)), absent={PATH}, folder=folder)
    for path, node in own_nodes([edits], folder).items():
        make_node(path, node)
    done = bundle.run(edits, own_users=own_users)
    assert (done.stdout, done.stderr) == ("opened\n", "")
