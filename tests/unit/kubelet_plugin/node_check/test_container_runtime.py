"""What is read of the container runtime: files with their lines, services, sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordra.kubelet_plugin.node_check.readings.container_runtime.cri_client import RuntimeAnswer, ask_runtime
from koordra.kubelet_plugin.node_check.readings.container_runtime.runtime import Runtime, read_runtime
from koordra.kubelet_plugin.node_check.readings.container_runtime.systemd_unit import service_setting
from koordra.kubelet_plugin.node_check.readings.container_runtime.toml_settings import read_toml
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import no_node
from koordra.kubelet_plugin.node_check.readings.processes import read_processes
from koordra.kubelet_plugin.node_check.readings.setting import Setting
from tests.fakes.node_files import CONTAINERD, NodeFiles


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def read(node: NodeFiles, version: str = "2.1.4") -> Runtime:
    """The runtime of a node whose programs say that they are of that version."""
    node.runtime_version = version
    root = HostFiles(node.root)
    found = read_runtime(root, read_processes(root), node.live())
    assert found is not None
    return found


def installed(node: NodeFiles, program: str = "containerd") -> None:
    """Not running: its version is that of the program."""
    node.write(f"usr/bin/{program}", "")


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("a = 1\nb = 2", ("b",), 2),
        ("# a = 1\n\n[t]\n  # c\n  a = 1", ("t", "a"), 5),
        ("[plugins.'io.x']\na = 1", ("plugins", "io.x", "a"), 2),
        ('[plugins."io.x" . y]\n"a b" = 1', ("plugins", "io.x", "y", "a b"), 2),
        ("x = [\n  '[t]',\n  'b = 1',\n]\n[t]\nb = 2", ("t", "b"), 6),
        ("x = '''\n[t]\nb = 1\n'''\nb = 2", ("b",), 5),
        ("t.u.a = 1", ("t", "u", "a"), 1),
        ("\nt = {a = 1, b = {c = 2}}", ("t", "b", "c"), 2),
        ("[[list]]\na = 1\n[t]\nb = 2", ("t", "b"), 4),
        ("[t] # [u]\na = 1 # b = 2", ("t", "a"), 2),
    ],
)
def test_a_setting_has_the_line_that_says_it(
    node: NodeFiles, text: str, key: tuple[str, ...], line: int
) -> None:
    node.write("etc/x.toml", text)
    found = read_toml(HostFiles(node.root), "etc/x.toml")
    assert found is not None
    assert found.settings[key].where == f"/etc/x.toml:{line}"


@pytest.mark.parametrize("text", ["a = ", "[", "a = 1\na = 2", "a = " + "[" * 20000, b"\xff\xfe"])
def test_what_is_no_toml_is_said(node: NodeFiles, text: str | bytes) -> None:
    node.write(CONTAINERD, text)
    installed(node)
    if isinstance(text, bytes):  # nothing of it is text, so it has no settings
        assert read(node).cdi is None
    else:
        assert read(node).garbled[0].startswith(f"/{CONTAINERD}: ")


_OLD = "io.containerd.grpc.v1.cri"
_NEW = "io.containerd.cri.v1.runtime"


def of_containerd(table: str, version: int, *lines: str, imports: str = "") -> str:
    return "\n".join([f"version = {version}", imports, f"[plugins.'{table}']", *lines, ""])


def test_containerd_2_joins_drop_ins_setting_by_setting(node: NodeFiles) -> None:
    installed(node)
    imports = "imports = ['conf.d/*.toml']"
    node.write(
        CONTAINERD, of_containerd(_NEW, 3, "enable_cdi = false", "cdi_spec_dirs = ['/a']", imports=imports)
    )
    node.write("etc/containerd/conf.d/b.toml", of_containerd(_NEW, 3, "enable_cdi = false"))
    node.write("etc/containerd/conf.d/c.toml", of_containerd(_OLD, 2, "enable_cdi = true"))
    found = read(node, "2.3.1")
    assert found.cdi == Setting(True, "/etc/containerd/conf.d/c.toml:4")
    assert found.cdi_folders == Setting(["/a"], f"/{CONTAINERD}:5")
    # Until 2.2 the tables of the newer version win, wherever they stand.
    assert read(node, "2.1.4").cdi == Setting(False, "/etc/containerd/conf.d/b.toml:4")


def test_containerd_1_replaces_the_whole_plugin_by_a_drop_in(node: NodeFiles) -> None:
    installed(node)
    imports = "imports = ['/etc/containerd/conf.d/*.toml']"
    node.write(CONTAINERD, of_containerd(_OLD, 2, "enable_cdi = true", imports=imports))
    node.write("etc/containerd/conf.d/b.toml", of_containerd(_OLD, 2, "enable_selinux = true"))
    found = read(node, "1.7.24")
    assert found.cdi is None
    assert found.selinux == Setting(True, "/etc/containerd/conf.d/b.toml:4")


def test_the_table_of_another_version_is_not_looked_at(node: NodeFiles) -> None:
    """As containerd ignores it: a common mistake of those who copy a snippet."""
    installed(node)
    node.write(CONTAINERD, of_containerd(_NEW, 2, "enable_cdi = true"))
    assert read(node, "1.7.24").cdi is None
    node.write(CONTAINERD, of_containerd(_OLD, 3, "enable_cdi = true"))
    assert read(node).cdi is None


def test_imports_in_a_circle_end(node: NodeFiles) -> None:
    installed(node)
    node.write(CONTAINERD, "version = 3\nimports = ['/etc/containerd/config.toml', 'x.toml', 3, 'gone.toml']")
    node.write("etc/containerd/x.toml", "version = 3\nimports = ['config.toml']")
    assert read(node).files == (f"/{CONTAINERD}", "/etc/containerd/x.toml")


@pytest.mark.parametrize(
    ("path", "socket_path"),
    [
        ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", "run/k3s/containerd/containerd.sock"),
        ("var/lib/rancher/rke2/agent/etc/containerd/config.toml", "run/k3s/containerd/containerd.sock"),
        ("var/snap/microk8s/current/args/containerd.toml", "var/snap/microk8s/common/run/containerd.sock"),
    ],
)
def test_distributions_keep_it_elsewhere(node: NodeFiles, path: str, socket_path: str) -> None:
    node.write(path, of_containerd(_NEW, 3, "enable_cdi = true"))
    node.socket(socket_path)
    found = read(node)
    assert (found.version, found.cdi) == ("2.1.4", Setting(True, f"/{path}:4"))


def test_the_running_process_says_which_file_it_reads(node: NodeFiles) -> None:
    node.write(CONTAINERD, of_containerd(_NEW, 3, "enable_cdi = false"))
    node.write("opt/c.toml", of_containerd(_NEW, 3, "enable_cdi = true"))
    node.process(9, "/opt/bin/containerd", "--config", "/opt/c.toml", cgroup="0::/system.slice/my.service")
    node.write("run/systemd/system/my.service", "[Service]\nLimitMEMLOCK=1G\n")
    found = read(node)
    assert found.cdi == Setting(True, "/opt/c.toml:4")
    assert found.memlock.setting == Setting("1G", "/run/systemd/system/my.service:2")


DOCKER_S, K3S_S = "run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock"


def with_docker_s(node: NodeFiles) -> None:
    """Docker's containerd, which serves no CRI, started before k3s's."""
    node.write(CONTAINERD, of_containerd(_NEW, 3, "enable_cdi = false"))
    node.process(9, "/usr/bin/containerd", cgroup="0::/system.slice/containerd.service")
    node.socket(DOCKER_S)
    node.write("data/bin/runc", "")
    node.write("usr/bin/runc", "")
    node.write("data/bin/containerd", "")
    node.link("proc/80/exe", "/data/bin/containerd")
    node.write("opt/c.toml", "[grpc]\naddress = '/run/k3s/containerd/containerd.sock'\n")
    node.process(80, "containerd", "-c", "/opt/c.toml")
    node.socket(K3S_S)


def answered(node: NodeFiles, *sockets: str, endpoint: str | None = None) -> Runtime:
    def runtime(path: Path) -> RuntimeAnswer | None:
        return RuntimeAnswer("containerd", "2.2.0") if str(path).endswith(sockets) else None

    root = HostFiles(node.root)
    live = replace(node.live(), runtime=runtime)
    found = read_runtime(root, read_processes(root), live, endpoint=endpoint)
    assert found is not None
    return found


def test_of_two_runtimes_the_one_that_serves_cri_counts(node: NodeFiles) -> None:
    with_docker_s(node)
    found = answered(node, K3S_S)
    assert (found.files, found.version, found.oci_runtime) == (("/opt/c.toml",), "2.2.0", "/data/bin/runc")


def test_of_two_that_serve_cri_the_kubelet_s_counts(node: NodeFiles) -> None:
    with_docker_s(node)
    assert answered(node, DOCKER_S, K3S_S).files == (f"/{CONTAINERD}",)
    assert answered(node, DOCKER_S, K3S_S, endpoint=f"/{K3S_S}").files == ("/opt/c.toml",)


def test_of_two_that_do_not_answer_the_kubelet_s_counts_with_its_program_s_version(node: NodeFiles) -> None:
    with_docker_s(node)
    asked: list[str] = []
    root = HostFiles(node.root)
    live = replace(
        node.live(), runtime=lambda _: None, program_version=lambda _, path: asked.append(path) or "2.0.1"
    )
    found = read_runtime(root, read_processes(root), live, endpoint=f"/{K3S_S}")
    assert found is not None
    assert (found.files, found.version) == (("/opt/c.toml",), "2.0.1")
    assert asked == ["data/bin/containerd", "data/bin/runc"]


def test_a_process_of_a_pod_is_no_runtime_of_the_node(node: NodeFiles) -> None:
    """Anybody may call a process so."""
    node.write(CONTAINERD, of_containerd(_NEW, 3, "enable_cdi = false"))
    node.write("opt/c.toml", of_containerd(_NEW, 3, "enable_cdi = true"))
    node.process(9, "containerd", "--config", "/opt/c.toml", cgroup="0::/kubepods.slice/pod1")
    assert read(node).files == (f"/{CONTAINERD}",)


def test_links_of_the_host_stay_on_the_host(node: NodeFiles) -> None:
    """In a pod the host's root is a folder, and its absolute links are meant from there."""
    node.write("data/containerd/config.toml", of_containerd(_NEW, 3, "enable_cdi = true"))
    node.link("etc/containerd", "/data/containerd")
    installed(node)
    assert read(node).cdi == Setting(True, f"/{CONTAINERD}:4")


def test_crio_s_drop_ins_win(node: NodeFiles) -> None:
    installed(node, "crio")
    node.write(
        "etc/crio/crio.conf", "[crio.nri]\nenable_nri = true\n[crio.runtime]\ncdi_spec_dirs = ['/a']\n"
    )
    node.write(
        "etc/crio/crio.conf.d/10-crun.conf", '[crio.runtime]\ndefault_runtime = "crun"\nselinux = true\n'
    )
    node.write("etc/crio/crio.conf.d/99-nri.conf", "[crio.nri]\nenable_nri = false\n")
    node.write("usr/bin/crun", "")
    found = read(node, "1.34.0")
    assert (found.kind, found.version, found.oci_runtime) == ("cri-o", "1.34.0", "/usr/bin/crun")
    assert found.nri == Setting(False, "/etc/crio/crio.conf.d/99-nri.conf:2")
    assert found.cdi_folders == Setting(["/a"], "/etc/crio/crio.conf:4")
    assert found.default_runtime == Setting("crun", "/etc/crio/crio.conf.d/10-crun.conf:2")


def test_without_a_runtime_there_is_none(node: NodeFiles) -> None:
    assert read_runtime(HostFiles(node.root), (), no_node()) is None


def test_the_last_drop_in_of_a_service_counts(node: NodeFiles) -> None:
    node.write("usr/lib/systemd/system/c.service", "[Service]\nLimitMEMLOCK=1\n[Install]\nLimitMEMLOCK=9\n")
    node.write("lib/systemd/system/c.service", "[Service]\nLimitMEMLOCK=8\n")
    node.write("usr/lib/systemd/system/c.service.d/50-a.conf", "[Service]\nLimitMEMLOCK=2\n")
    node.write("etc/systemd/system/c.service.d/50-a.conf", "[Service]\n# LimitMEMLOCK=7\nLimitMEMLOCK = 3\n")
    root = HostFiles(node.root)
    assert service_setting(root, "c.service", "LimitMEMLOCK") == Setting(
        "3", "/etc/systemd/system/c.service.d/50-a.conf:3"
    )
    node.write("run/systemd/system/c.service.d/60.conf", "[Service]\nLimitMEMLOCK=\n")
    assert service_setting(root, "c.service", "LimitMEMLOCK") is None


def _message(number: int, value: bytes) -> bytes:
    assert len(value) < 1 << 14
    size = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 0x7F | 0x80, len(value) >> 7])
    return bytes([number << 3 | 2]) + size + value


class _Cri(grpc.GenericRpcHandler):
    """A runtime that gives these answers to every call."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers

    def service(self, details: Any) -> Any:
        answer = self.answers.get(details.method.rpartition("/")[2])
        return (
            answer
            if answer is None
            else grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
        )


@pytest.fixture
def cri(tmp_path: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    path, answers = tmp_path / "c.sock", dict[str, bytes]()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((_Cri(answers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path, answers
    server.stop(None).wait()


_VERSION = _message(1, b"0.1.0") + _message(2, b"containerd") + _message(3, b"v2.1.4") + _message(4, b"v1")


def test_the_runtime_says_what_it_runs_with(cri: tuple[Path, dict[str, bytes]]) -> None:
    path, answers = cri
    config = json.dumps({"enableCDI": False}).encode()
    answers["Version"] = _VERSION
    answers["Status"] = _message(1, b"\x08\x01") + b"".join(
        _message(2, _message(1, key) + _message(2, value))
        for key, value in ((b"golang", b"1"), (b"config", config))
    )
    assert ask_runtime(path) == RuntimeAnswer("containerd", "2.1.4", {"enableCDI": False})


@pytest.mark.parametrize(
    ("version", "status", "answer"),
    [
        (_VERSION, b"", RuntimeAnswer("containerd", "2.1.4")),
        (
            _VERSION,
            _message(2, _message(1, b"config") + _message(2, b"{")),
            RuntimeAnswer("containerd", "2.1.4"),
        ),
        (_VERSION, b"\x12\xff", None),
        (_VERSION, b"\x0b", None),
        (b"\xff" * 11, b"", None),
        (b"", b"", None),
    ],
)
def test_what_is_no_answer_is_none(
    cri: tuple[Path, dict[str, bytes]], version: bytes, status: bytes, answer: RuntimeAnswer | None
) -> None:
    path, answers = cri
    answers.update(Version=version, Status=status)
    assert ask_runtime(path) == answer


def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        assert ask_runtime(path, seconds=0.2) is None
    assert ask_runtime(path, seconds=0.2) is None
    assert ask_runtime(tmp_path / "nowhere", seconds=0.2) is None
