"""The NICs of a pod, as the hook has them put there: tried with the sandbox, required with the container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.errors import NodeError, RemoteError
from koordra.node_state.claim_network import Sandbox
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.plugin import HookPlugin

CALL: Any = None
MARKER = "KOORDRA_CLAIM_11111111_2222_3333_4444_555555555555"


class Networks:
    """Refuses as often as it is told to; `attached` are the sandboxes that it was asked for."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.attached: list[str] = []

    def attach(self, sandbox: Sandbox, /) -> None:
        self.attached.append(sandbox.id)
        self.refusals -= 1
        if self.refusals >= 0:
            raise NodeError("NoRoutableGID: mlx5_7 would carry nothing")

    def detach(self, sandbox: Sandbox, /) -> None:
        raise AssertionError


def hook(state: Path, networks: Networks) -> HookPlugin:
    return HookPlugin(
        StateReader(state, node_name="node-a"),
        Ledger(state),
        networks=networks,
    )


def request(*env: str) -> nri_pb2.CreateContainerRequest:
    pod = nri_pb2.PodSandbox(id="s", name="p", uid="u", namespace="team")
    container = nri_pb2.Container(id="c", pod_sandbox_id="s", name="c", env=env)
    return nri_pb2.CreateContainerRequest(pod=pod, container=container)


def test_a_sandbox_is_never_refused_and_its_container_is_with_words(tmp_path: Path) -> None:
    """containerd leaves the pause process of a refused sandbox behind."""
    networks = Networks(refusals=2)
    plugin = hook(tmp_path, networks)
    plugin.run_pod_sandbox(nri_pb2.RunPodSandboxRequest(pod=request().pod), CALL)
    with pytest.raises(
        RemoteError, match="the network of its pod: NoRoutableGID: mlx5_7 would carry nothing"
    ):
        plugin.create_container(request(f"{MARKER}=x"), CALL)
    # Attached now: what else there is to say of the container follows.
    with pytest.raises(RemoteError, match="no such claim is prepared on this node"):
        plugin.create_container(request(f"{MARKER}=x"), CALL)
    assert networks.attached == ["s", "s", "s"]


def test_containers_without_a_claim_are_not_asked_about(tmp_path: Path) -> None:
    networks = Networks(refusals=1)
    hook(tmp_path, networks).create_container(request("PATH=/bin"), CALL)
    assert networks.attached == []
