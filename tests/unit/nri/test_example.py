"""The example plugin of the library's README runs: dialling, and launched with a socket."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.errors import RemoteError
from koordra.nri import messages
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


def readmes_plugin(name: str) -> Plugin:
    """Of the code block that defines it, which is not run to its end."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if f"class {name}(Plugin)" in block]
    names: dict[str, object] = {}
    exec(re.sub(r"(?m)^Stub\(.*\n", "", code), names)
    made = names[name]
    assert isinstance(made, type)
    assert issubclass(made, Plugin)
    plugin: Plugin = made()
    assert plugin.wanted_events() == 1 << 3
    return plugin


def test_the_readmes_first_plugin_works() -> None:
    answer = readmes_plugin("Proxy").create_container(nri_pb2.CreateContainerRequest(), None)  # type: ignore[attr-defined]
    assert answer.adjust.env[0].key == "HTTP_PROXY"


def test_the_readmes_second_plugin_reads_the_pod_and_refuses() -> None:
    plugin: Any = readmes_plugin("OpenFiles")

    def asked(**annotations: str) -> Any:
        pod = nri_pb2.PodSandbox(
            annotations={name.replace("_", "-"): value for name, value in annotations.items()}
        )
        pod.annotations.update(
            {"limits.example.org/open-files": annotations.get("files", "")} if annotations else {}
        )
        return plugin.create_container(nri_pb2.CreateContainerRequest(pod=pod), None)

    assert not asked().adjust.rlimits
    (limit,) = asked(files="4096").adjust.rlimits
    assert (limit.type, limit.soft, limit.hard) == ("RLIMIT_NOFILE", 4096, 4096)
    for wrong in ("many", "0", "-1", "1000001", "１２"):
        with pytest.raises(RemoteError, match="is no number from 1"):
            asked(files=wrong)


def test_the_messages_are_nris_own() -> None:
    assert messages.CreateContainerResponse is nri_pb2.CreateContainerResponse
    assert {"PodSandbox", "Container", "UpdateContainerRequest", "ValidateContainerAdjustmentRequest"} <= set(
        dir(messages)
    )
