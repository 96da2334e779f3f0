"""What the driver's programs in a container are told of the node's cards (native/cdi-hook/cards.c).

No GPU driver is loaded here, so the folder that it makes in /proc is a folder of the test's, which another
CDI hook binds into the container's /proc before koordra's runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from koordra.api import kinds
from tests.e2e.containerd import Containerd
from tests.e2e.cri import ContainerSpec
from tests.e2e.node import NODE, KoordraNode, Prepared
from tests.e2e.test_containers import ALLOWED, node_of, pod, prepare, share_of, whole  # noqa: F401  fixtures

pytestmark = pytest.mark.e2e

PARAMETERS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: {}\nDeviceFileMode: 438\n"
PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


@pytest.fixture
def loaded(containerd: Containerd) -> str:
    """The CDI name of a loaded driver's /proc/driver."""
    folder = containerd.folder / "driver"
    (folder / "nvidia").mkdir(parents=True, exist_ok=True)
    (folder / "nvidia" / "params").write_text(PARAMETERS.format(1))
    hook = {
        "hookName": "createContainer",
        "path": "/bin/sh",
        "args": ["sh", "-c", f"mount --bind {folder} proc/driver"],
        "env": [f"PATH={os.environ['PATH']}"],
    }
    device = {"name": "loaded", "containerEdits": {"hooks": [hook]}}
    spec = {"cdiVersion": "0.3.0", "kind": "local.test/driver", "devices": [device]}
    (containerd.cdi / "local.test-driver.json").write_text(json.dumps(spec))
    return "local.test/driver=loaded"


def test_roots_programs_are_told_to_make_no_nodes(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
    loaded: str,
) -> None:
    spec = ContainerSpec(cdi=[loaded])
    assert PARAMETERS.format(1) == _text(containerd, pod, "without", spec, "cat /proc/driver/nvidia/params")
    claims = prepare(whole(node.machine.gpus[0])), prepare(share_of(node.machine.gpus[1]))
    spec = ContainerSpec(cdi=[loaded, *(name for claim in claims for name in claim.all_cdi)])
    container = containerd.cri.run(pod, "with", spec)
    assert containerd.cri.shell(container, "cat /proc/driver/nvidia/params").text == PARAMETERS.format(0)
    for script in ("echo ModifyDeviceFiles: 1 > {}", "rm {}", "mount -o remount,bind,rw {}", "umount {}"):
        done = containerd.cri.shell(container, script.format("/proc/driver/nvidia/params"))
        assert done.code != 0, script
    assert containerd.cri.shell(container, "cat /proc/driver/nvidia/params").text == PARAMETERS.format(0)


def test_egl_lists_the_cards_of_the_container_alone(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
) -> None:
    cards = [node.machine.gpus[number] for number in (1, 4)]
    claims = [prepare(whole(card)) for card in cards]
    spec = ContainerSpec(cdi=[name for claim in claims for name in claim.all_cdi], read_only_root=True)
    mask = sum(1 << node_of(card).minor for card in cards)
    said = _text(containerd, pod, "two", spec, f"cat {PROFILE}")
    assert f'"EGLVisibleDGPUDevices",{mask:#x}]' in said


GROUP = 4242


@pytest.fixture
def group_owned(containerd: Containerd, node: KoordraNode) -> Iterator[None]:
    """The host's cards are a group's (NVreg_DeviceFileMode=0660), and the runtime is known."""
    name = node.api.get(kinds.NODES, NODE)
    name["status"] = {"nodeInfo": {"containerRuntimeVersion": f"containerd://{containerd.runtime.version}"}}
    node.api.update(kinds.NODES, name, subresource="status")
    nodes = list((node.root / "dev").glob("nvidia*"))
    for path in nodes:
        path.chmod(0o660)
        os.chown(path, 0, GROUP)
    node.restart_plugin()
    yield
    for path in nodes:
        path.chmod(0o666)
        os.chown(path, 0, 0)
    node.restart_plugin()


@pytest.mark.usefixtures("group_owned")
def test_who_is_not_root_joins_the_groups_of_the_hosts_nodes(
    containerd: Containerd,
    node: KoordraNode,
    pod: str,  # noqa: F811
    prepare: Callable[..., Prepared],  # noqa: F811
) -> None:
    card = node.machine.gpus[2]
    spec = ContainerSpec(cdi=prepare(whole(card)).all_cdi, user=65534)
    script = f"id; dd if={node_of(card).path} count=1"
    said = _text(containerd, pod, "nobody", spec, script)
    assert "uid=65534" in said
    assert str(GROUP) in said
    assert ALLOWED in said


def _text(containerd: Containerd, pod: str, name: str, spec: ContainerSpec, script: str) -> str:  # noqa: F811
    return containerd.cri.shell(containerd.cri.run(pod, name, spec), script).text
