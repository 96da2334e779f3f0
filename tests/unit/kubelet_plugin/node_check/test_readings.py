"""What is read of the rest of a node: NVML in a process of its own, the kubelet, PCIe, processes."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from koordra.kubelet_plugin.node_check.readings import live_node
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.kubelet import read_kubelet
from koordra.kubelet_plugin.node_check.readings.nvml_answers import Fabric, Nvml, NvmlGpu, read_nvml
from koordra.kubelet_plugin.node_check.readings.pcie import read_pcie
from koordra.kubelet_plugin.node_check.readings.processes import read_processes
from koordra.kubelet_plugin.node_check.readings.setting import Setting
from koordra.topology.partitions import FabricInfo
from tests.fakes import node_files, nvml_library
from tests.fakes.node_files import KUBELET, NodeFiles
from tests.patience import PATIENCE

CLUSTER = "00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


_FULL = {"fabric": f"{CLUSTER} 1 2", "mig": "0 1"}


def test_nvml_is_asked_by_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml_library.FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node_files.MACHINE, gpu1=_FULL)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    document = live_node.this_node().nvml(fake.library / "libnvidia-ml.so.1")
    first, second = node_files.MACHINE.gpus
    assert read_nvml(document or "") == Nvml(
        driver_version=node_files.DRIVER,
        gpus=(
            NvmlGpu(first.location.bus_id, mig_enabled=False, mig_pending=False),
            NvmlGpu(
                second.location.bus_id,
                mig_enabled=False,
                mig_pending=True,
                fabric=Fabric(state=2, clique=FabricInfo(CLUSTER, 1)),
            ),
        ),
    )


def test_what_lies_in_the_folder_where_koordra_is_started_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root runs `koordra node check` anywhere, also where somebody else may write: `python -m` would import
    from there."""
    fake = nvml_library.FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node_files.MACHINE, gpu1=_FULL)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "ctypes.py").write_text("open('run', 'w')")
    monkeypatch.chdir(tmp_path / "there")
    document = live_node.this_node().nvml(fake.library / "libnvidia-ml.so.1")
    assert not (tmp_path / "there" / "run").exists()
    assert read_nvml(document or "").driver_version == node_files.DRIVER


def test_an_nvml_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml_library.FakeNvml(tmp_path, nvml_library.build())
    fake.describe(node_files.MACHINE)
    fake.order("error nvmlInitWithFlags 18", "error nvmlInit_v2 18")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    found = read_nvml(live_node.this_node().nvml(None) or "")
    assert found is not None
    assert found.gpus == ()
    assert found.error


def test_a_library_that_is_none_says_why(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    found = read_nvml(live_node.this_node().nvml(tmp_path / "libnvidia-ml.so.1") or "")
    assert found is not None
    assert "libnvidia-ml.so.1" in found.error


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "koordra.io/nvml/v2"}', "[" * 100000])
def test_what_is_no_document_of_nvml_is_none(text: str) -> None:
    assert read_nvml(text) is None


def test_garbled_cards_are_left_out() -> None:
    cards = [3, {}, {"busId": "x"}, {"busId": "0000:01:00.0", "migEnabled": "yes", "fabric": {"state": "3"}}]
    found = read_nvml(json.dumps({"schema": "koordra.io/nvml/v1", "gpus": cards}))
    assert found == Nvml(gpus=(NvmlGpu("0000:01:00.0", fabric=Fabric(state=3)),))


def test_a_program_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """It is killed with what it started; who started it goes on."""
    pid = tmp_path / "pid"
    script = f"sleep 3600 & echo $! > {pid}; wait"
    assert live_node.output_of(["sh", "-c", script], seconds=3.0) is None
    assert live_node.output_of([str(tmp_path / "nowhere")], seconds=1.0) is None
    assert live_node.output_of([sys.executable, "-c", "raise SystemExit(1)"], seconds=60.0) is None
    stat, until = Path("/proc") / pid.read_text().strip() / "stat", time.monotonic() + PATIENCE
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_version_of_a_program_is_the_number_it_prints(tmp_path: Path) -> None:
    program = tmp_path / "runc"
    program.write_text("#!/bin/sh\necho runc version 1.3.3\necho spec: 1.2.1\n")
    program.chmod(0o755)
    assert live_node.this_node().program_version(Path("/"), str(program).lstrip("/")) == "1.3.3"


@pytest.mark.parametrize(
    ("script", "protocol"),
    [
        ('test "$*" = "-p 3 -h" && echo commands: server namespace', "3"),
        ("echo unknown option; exit 1", "2"),
    ],
)
def test_the_version_of_mps_is_asked_of_the_driver_s_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, protocol: str
) -> None:
    live = live_node.this_node()
    assert live.mps_protocol(tmp_path) is None, "a machine without a driver"
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(
        live_node, "on_host", lambda _homes: lambda _name, arguments, _env, **_: [str(program), *arguments]
    )
    assert live.mps_protocol(tmp_path) == protocol


def test_whether_somebody_listens_is_asked_of_the_socket(tmp_path: Path) -> None:
    path, live = tmp_path / "s.sock", live_node.this_node()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert live.answers(path) is True
    assert live.answers(path) is False
    assert live.answers(tmp_path / "nowhere") is False


def test_a_captured_machine_is_not_this_one(node: NodeFiles) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert not HostFiles(node.root).is_live
    node.write("proc/sys/kernel/random/boot_id", boot_id)
    assert HostFiles(node.root).is_live


@pytest.mark.parametrize(
    ("arguments", "policy", "where"),
    [
        (("--config", "/etc/k.yaml"), "static", "/etc/k.yaml:2"),
        (("--config=/etc/k.yaml", "--cpu-manager-policy=none"), "none", "a flag of the kubelet"),
        (("--config=/etc/k.yaml", "--config-dir=/etc/k.d"), "none", "/etc/k.d/10.conf:1"),
    ],
)
def test_flags_of_the_kubelet_win_over_its_files(
    node: NodeFiles, arguments: tuple[str, ...], policy: str, where: str
) -> None:
    node.write("etc/k.yaml", "kind: KubeletConfiguration\ncpuManagerPolicy: static\n")
    node.write("etc/k.d/10.conf", "cpuManagerPolicy: none\n")
    node.write(f"{KUBELET}/config.yaml", "cpuManagerPolicy: static\n")
    node.process(7, "/usr/bin/kubelet", *arguments)
    root = HostFiles(node.root)
    found = read_kubelet(root, read_processes(root))
    assert found.settings["cpuManagerPolicy"] == Setting(policy, where)


def test_a_kubelet_that_runs_without_a_file_has_none(node: NodeFiles) -> None:
    node.write(f"{KUBELET}/config.yaml", "cpuManagerPolicy: static\n")
    node.write("etc/kubernetes/kubelet.conf.d/10.conf", "cpuManagerPolicy: static\n")
    node.process(7, "/usr/bin/kubelet", "--root-dir", "/data/kubelet")
    root = HostFiles(node.root)
    found = read_kubelet(root, read_processes(root))
    assert (found.root, found.settings) == ("/data/kubelet", {})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/kubernetes/kubelet/config.json", '{\n"topologyManagerPolicy": "restricted"}'),
        ("etc/rancher/k3s/config.yaml", "kubelet-arg:\n- topology-manager-policy=restricted\n- v=2\n"),
        ("etc/rancher/rke2/config.yaml", "kubelet-arg: topology-manager-policy=restricted\n"),
        ("var/snap/microk8s/current/args/kubelet", '--topology-manager-policy="restricted"\n'),
        ("var/lib/rancher/k3s/agent/etc/kubelet.conf.d/10.conf", "topologyManagerPolicy: restricted\n"),
    ],
)
def test_distributions_configure_the_kubelet_elsewhere(node: NodeFiles, path: str, text: str) -> None:
    node.write(path, text)
    found = read_kubelet(HostFiles(node.root), ()).settings["topologyManagerPolicy"]
    assert found.value == "restricted"
    assert found.where.startswith(f"/{path}")


@pytest.mark.parametrize("text", ["- a", "a: [", "x: *y", "\0", "{" * 5000])
def test_a_kubelet_configuration_that_is_none_is_named(node: NodeFiles, text: str) -> None:
    node.write(f"{KUBELET}/config.yaml", text)
    assert read_kubelet(HostFiles(node.root), ()).garbled == (f"/{KUBELET}/config.yaml",)


def test_ports_of_switches_with_one_device_do_not_matter(tmp_path: Path) -> None:
    """Nothing below them talks to a neighbour: mlx5_1 has its switch to itself."""
    node = node_files.healthy(tmp_path)
    found = read_pcie(HostFiles(node.root))
    assert found.switch_ports == node_files.SWITCH_PORTS
    assert found.unreadable == found.redirecting == ()


def test_a_short_configuration_space_cannot_be_read(tmp_path: Path) -> None:
    node = node_files.healthy(tmp_path)
    path = f"sys/bus/pci/devices/{node_files.SWITCH_PORTS[0]}/config"
    node.write(path, node_files.acs_config(0x1D)[:256])
    assert read_pcie(HostFiles(node.root)).unreadable == node_files.SWITCH_PORTS[:1]


def test_a_port_without_the_capability_redirects_nothing(tmp_path: Path) -> None:
    node = node_files.healthy(tmp_path)
    config = bytearray(node_files.acs_config(0x1D))
    config[0x100:0x104] = bytes(4)
    node.write(f"sys/bus/pci/devices/{node_files.SWITCH_PORTS[0]}/config", bytes(config))
    assert read_pcie(HostFiles(node.root)).redirecting == ()


def test_capabilities_in_a_circle_end(tmp_path: Path) -> None:
    node = node_files.healthy(tmp_path)
    config = bytearray(node_files.acs_config(0))
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    node.write(f"sys/bus/pci/devices/{node_files.SWITCH_PORTS[0]}/config", bytes(config))
    assert read_pcie(HostFiles(node.root)).redirecting == ()
