"""The example plugin of the library's README runs: dialling, and launched with a socket."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from koordra._proto.nri import nri_pb2
from koordra.nri.stub import Plugin
from tests.fakes.nri_runtime import NEW, OLD, FakeRuntime, PluginConnection, StatusError, Version
from tests.patience import PATIENCE

README = Path(__file__).resolve().parents[3] / "koordra" / "nri" / "README.md"


def create(connection: PluginConnection, name: str, **annotations: str) -> str:
    pod = nri_pb2.PodSandbox(name="p", namespace="team", annotations=annotations)
    answer = connection.create(pod, nri_pb2.Container(name=name))
    assert answer is not None
    return answer.adjust.annotations["example.org/order"]


@pytest.mark.parametrize("version", [OLD, NEW], ids=["StateChange", "one method each"])
def test_it_dials_numbers_refuses_and_ends(tmp_path: Path, version: Version) -> None:
    runtime = FakeRuntime(tmp_path / "nri.sock", version=version)
    command = [sys.executable, "-m", "koordra.nri.example", "--socket", str(runtime.path), "--count", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        connection = runtime.accept()
        connection.handshake(chunks=[[nri_pb2.Container(name="old")], []])
        assert create(connection, "a") == "1"
        with pytest.raises(StatusError, match="the pod says that it is forbidden"):
            create(connection, "b", **{"example.org/forbidden": ""})
        connection.announce(nri_pb2.Event.REMOVE_CONTAINER, container=nri_pb2.Container(name="old"))
        assert create(connection, "c") == "2"
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
        runtime.stop()
    assert process.returncode == 0
    assert printed.splitlines()[1:] == [
        "1 containers in 0 pods",
        "created team/p/a",
        "removed old",
        "created team/p/c",
    ]


def test_it_is_launched_with_nothing_but_a_socket() -> None:
    ours, theirs = socket.socketpair()
    environment = {
        "NRI_PLUGIN_NAME": "example",
        "NRI_PLUGIN_IDX": "50",
        "NRI_PLUGIN_SOCKET": str(theirs.fileno()),
    }
    root = README.parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "koordra.nri.example"],
        env=environment,
        pass_fds=[theirs.fileno()],
        cwd=root,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    try:
        connection = PluginConnection(ours)
        connection.handshake()
        assert create(connection, "a") == "1"
        connection.close()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_the_readmes_plugin_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace('Stub(Proxy(), name="proxy", index="50").run(threading.Event())', ""), names)
    proxy = names["Proxy"]
    assert isinstance(proxy, type)
    assert issubclass(proxy, Plugin)
    plugin = proxy()
    assert plugin.wanted_events() == 1 << 3
    answer = plugin.create_container(nri_pb2.CreateContainerRequest(), None)
    assert answer.adjust.env[0].key == "HTTP_PROXY"
