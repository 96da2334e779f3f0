"""The pods' networks within a runtime's patience: it waits 2 s for all that its plugins do, and eight NICs,
or a CNI plugin that asks a server for an address, take longer.

What is begun goes on in a thread of its own after the answer, which is an error then: a sandbox is made or
stopped all the same (nri/hook/plugin.py), containers are refused, and the kubelet's next try finds the
network there. A pod has one thing done at a time: what else comes waits, and is told to come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.node_state.claim_network import Sandbox
from koordra.process.lifecycle import spawn

PATIENCE: Final = 1.0
"""Seconds; with what else a hook does below ANSWER_BY of the runtime's 2 (nri/transport/ttrpc_server.py)."""


class PatientNetworks:
    """`networks` does it, however long it takes. Errors are its own, or a NodeError where it takes longer."""

    def __init__(self, networks: PodNetworks, *, patience: float = PATIENCE) -> None:
        self._networks = networks
        self._patience = patience
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[object, Future[None]]] = {}
        """Pod -> what is done for it now."""

    def attach(self, sandbox: Sandbox) -> None:
        self._do("attach", sandbox, self._networks.attach)

    def detach(self, sandbox: Sandbox) -> None:
        self._do("detach", sandbox, self._networks.detach)

    def _do(self, what: str, sandbox: Sandbox, task: Callable[[Sandbox], None]) -> None:
        with self._lock:
            begun, done = self._begun.get(sandbox.pod_uid, (None, Future()))
            if begun is None:
                begun = what, sandbox.id
                self._begun[sandbox.pod_uid] = begun, done
                spawn(lambda: self._run(sandbox, task, done), name=f"{what}-network")
        if not wait([done], self._patience).done or begun != (what, sandbox.id):
            raise NodeError(
                f"pod {sandbox.namespace}/{sandbox.pod}: its network is still being made or taken back; tried again"
            )
        done.result()

    def _run(self, sandbox: Sandbox, task: Callable[[Sandbox], None], done: Future[None]) -> None:
        failed: BaseException | None = None
        try:
            task(sandbox)
        except BaseException as error:  # noqa: BLE001  carried over to whoever waits
            failed = error
        with self._lock:  # first, so that who comes after the answer begins anew
            del self._begun[sandbox.pod_uid]
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)
