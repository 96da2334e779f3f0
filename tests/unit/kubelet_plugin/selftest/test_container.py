"""What a spec changes in a container: the edits of its file, and what of this machine the container keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordra.errors import CDIError
from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, ContainerEdits, Mount
from koordra.kubelet_plugin.selftest.claims import AppliedClaim
from koordra.kubelet_plugin.selftest.container import (
    NamespaceContainer,
    ProcessContainer,
    driver_on_host,
    kept_mounts,
    without_spec,
)
from koordra.kubelet_plugin.selftest.namespace_init import inside
from koordra.kubelet_plugin.selftest.spec_edits import edits_of, hooks_of
from tests.machines import catalogue

HOOK = {"hookName": "createContainer", "path": "/opt/hook", "args": ["hook", "x"], "env": ["A=b"]}
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "koordra.io/claim",
    "containerEdits": {"env": ["ALL=1"], "hooks": [HOOK]},
    "devices": [
        {
            "name": "a",
            "containerEdits": {
                "env": ["ONE=x=y"],
                "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
                "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "rbind"]}],
                "hooks": [HOOK],
            },
        },
        {"name": "b", "containerEdits": {"env": ["TWO=2"]}},
    ],
}


def test_edits_are_those_of_the_file_and_of_the_devices_asked_for() -> None:
    edits = edits_of(SPEC, ["koordra.io/claim=a"])
    assert edits.env == (("ALL", "1"), ("ONE", "x=y"))
    assert [(node.path, node.major, node.minor) for node in edits.device_nodes] == [("/dev/nvidia0", 195, 0)]
    assert edits.mounts == (Mount("/h", "/c", ("ro", "rbind")),)
    assert hooks_of(SPEC, ["koordra.io/claim=a"]) == (HOOK,)


def test_a_device_that_the_file_has_not_is_refused() -> None:
    with pytest.raises(CDIError, match="unresolvable CDI device"):
        edits_of(SPEC, ["koordra.io/claim=c"])


TABLE = """\
1 0 254:0 / / rw - ext4 /dev/vda rw
2 1 0:5 / /dev rw - devtmpfs devtmpfs rw
3 1 0:6 / /proc rw - proc proc rw
4 2 0:7 / /dev/shm rw - tmpfs tmpfs rw
5 1 254:1 / /opt/my\\040data rw - ext4 /dev/vdb rw
6 1 254:2 / /usr/local/nvidia ro - ext4 /dev/vdc ro
7 1 0:8 / /run/lock rw - tmpfs tmpfs rw
8 1 254:3 / /home rw - ext4 /dev/vdd rw
"""


def test_mounts_of_the_machine_stay_but_for_the_system_s_and_the_driver_s() -> None:
    driver = ["/usr/local/nvidia/lib64/libcuda.so.580.159.04"]
    assert kept_mounts(TABLE, driver, needed=["/usr", "/opt"]) == ["/opt/my data", "/home"]


def test_a_mount_that_holds_the_driver_and_python_stays() -> None:
    driver = ["/home/driver/libcuda.so.1"]
    assert "/home" in kept_mounts(TABLE, driver, needed=["/home/me/.venv/bin/python"])
    assert "/home" not in kept_mounts(TABLE, driver, needed=["/usr/bin/python3"])


def test_the_driver_s_files_are_the_mounts_that_are_not_koordra_s_own(tmp_path: Path) -> None:
    own = tmp_path / "selftest"
    real = tmp_path / "libcuda.so.580"
    real.touch()
    link = tmp_path / "libcuda.so.1"
    link.symlink_to(real)
    edits = ContainerEdits(mounts=(Mount(f"{own}/library/libcuda.so.1", "/x"), Mount(str(link), "/y")))
    assert driver_on_host(edits, own) == [str(link), str(real)]


def test_links_of_the_root_do_not_lead_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "lib").mkdir()
    (tmp_path / "lib").symlink_to("/usr/lib")
    (tmp_path / "up").symlink_to("../../../etc")
    (tmp_path / "round").symlink_to("round")
    root = str(tmp_path)
    assert inside(root, "/lib/x/libcuda.so.1") == f"{root}/usr/lib/x/libcuda.so.1"
    assert inside(root, "/up/passwd") == f"{root}/etc/passwd"
    assert inside(root, "/a/../../b") == f"{root}/b"
    with pytest.raises(OSError, match="too many links"):
        inside(root, "/round")


def test_what_a_machine_chooses_for_its_own_programs_is_not_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's CUDA_VISIBLE_DEVICES, a job's allocator, a driver's folder."""
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libcuda.so.1").touch()
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("XLA_CLIENT_MEM_FRACTION", ".5"),
        ("JAX_PLATFORMS", "cpu"),
        ("NCCL_DEBUG", "INFO"),
        ("LD_LIBRARY_PATH", f"/opt/lib:{tmp_path / 'driver'}"),
        ("SOME_TOKEN", "secret"),
    ):
        monkeypatch.setenv(name, value)
    gpu = catalogue.machine("h200-vm").gpus[0]
    claim = AppliedClaim("c", "uid", gpu, None, {}, NO_EDITS, (), None)
    plan = NamespaceContainer(tmp_path, mount_table="").command(claim, ("x",), {}).argv[-1]
    namespace = json.loads(Path(plan).read_text())["environment"]
    process = ProcessContainer(tmp_path).command(claim, ("x",), {}).environment
    assert "CUDA_VISIBLE_DEVICES" not in namespace
    assert process["CUDA_VISIBLE_DEVICES"] == gpu.uuid
    assert namespace["LD_LIBRARY_PATH"] == "/opt/lib"
    alone = without_spec(tmp_path, ("x",), {}).environment
    assert alone["CUDA_VISIBLE_DEVICES"] == "3"
    assert not alone.keys() & {"PYTORCH_ALLOC_CONF", "XLA_CLIENT_MEM_FRACTION"}
    for variables in (namespace, process):
        assert variables["NCCL_DEBUG"] == "INFO"
        assert not variables.keys() & {
            "PYTORCH_ALLOC_CONF",
            "XLA_CLIENT_MEM_FRACTION",
            "JAX_PLATFORMS",
            "SOME_TOKEN",
        }
