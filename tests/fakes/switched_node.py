"""A cluster of one node, whose only card koordra switches between whole and MIG: the controller, the slices
that the plugin would publish, and the plugin's switcher, over the fake NVML. No process is started but those
that are to be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.api.opaque.isolation import node_policy
from koordra.api.opaque.mode_request import ModeRequest, mode_request
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.mig.mode_journal import JournalFile
from koordra.kubelet_plugin.isolation.mig.switching import ModeSwitcher
from koordra.kubelet_plugin.nvidia_driver.device_holders import DriverUsers, Holder
from koordra.kubelet_plugin.nvidia_driver.driver_programs import Command, DriverPrograms
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.kubelet_plugin.publish.node_slices import node_slices
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.disk import Disk
from koordra.topology.problems import Discovery
from tests.fakes.joint_cluster import JointCluster, device_class
from tests.fakes.mig_card import MigCard

NODE = "n0"


def no_program(name: str, *_: Any, **__: Any) -> list[str]:
    raise PrepareError(f"the node's GPU driver has no {name}")


class SwitchedNode(JointCluster):
    """`words`: the isolation policy of its card; `reset`: whether the node may reset a card for it."""

    def __init__(self, folder: Path, card: MigCard, *words: str, reset: bool = False, **more: Any) -> None:
        super().__init__(nodes=0, **more)
        self.folder, self.card = folder, card
        self.state = folder / "state"
        self.state.mkdir(exist_ok=True)
        self.api.create(DEVICE_CLASSES, device_class(names.CLASS_MIG, "mig"))
        self.api.create(NODES, node_of(NODE))
        self.offering = Offering(mig=True, mig_on_demand=True, mig_reset=reset, isolation=node_policy(words))
        self.wall = 1_000_000.0
        self.claims: list[ClaimRecord] = []
        self.holders: tuple[Holder, ...] = ()
        self.generation = 0
        self.reads = True
        self.command: Command = no_program
        self.start_plugin()
        self.publish()

    @property
    def name(self) -> str:
        return self.card.gpu.name

    def library(self) -> NvmlLibrary:
        return NvmlLibrary(lambda: self.card.fake.library / "libnvidia-ml.so.1")

    def mode(self) -> list[int]:
        """Current and pending, as the driver has them."""
        with self.library().session() as nvml:
            return list(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(self.card.uuid)))

    def start_plugin(self, disk: Disk | None = None) -> None:
        """A new process of the plugin, which begins with a reading."""
        self.inventory = InventorySource(self.folder, offering=self.offering)
        self.nvml = self.library()
        self.switcher = ModeSwitcher(
            self.state,
            self.folder,
            nvml=self.nvml,
            inventory=self.inventory,
            claims=lambda: self.claims,
            programs=DriverPrograms(self.command),
            changed=lambda: None,
            disk=disk or Disk(),
            users=lambda _root: DriverUsers(self.holders),
            clock=lambda: self.wall,
        )
        self.read()

    def read(self) -> None:
        current, pending = self.mode()
        faults = ("MigModePending",) if current != pending else ()
        gpu = replace(self.card.gpu, mig_enabled=bool(current), faults=faults)
        self.inventory.set(Discovery(replace(self.card.machine, gpus=(gpu,), nics=()), ()))

    def publish(self) -> None:
        self.generation += 1
        node = self.node()
        self.switcher.see_node(node)
        slices = node_slices(
            node,
            generation=self.generation,
            node_name=NODE,
            mode="joint",
            inventory=self.inventory.current(),
            held=(),
        )
        for old in self.api.all(RESOURCE_SLICES):
            self.api.delete(RESOURCE_SLICES, objects.name(old))
        for one in slices:
            self.api.create(RESOURCE_SLICES, one)

    def node(self) -> Object:
        return self.api.get(NODES, NODE)

    def request(self) -> ModeRequest | None:
        return mode_request(self.node())

    def asked(self) -> str:
        request = self.request()
        return "" if request is None else "clear" if request.is_clear else "asked"

    def plugin(self) -> None:
        """It sees the Node, acts, reads its machine, and publishes."""
        self.switcher.see_node(self.node())
        self.switcher.step()
        if self.reads:
            self.read()
        self.publish()

    def killed(self, run: Callable[[], None]) -> bool:
        """In a process of its own, whether an order of the fake NVML killed it."""
        child = os.fork()
        if not child:
            try:
                run()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def turn(self, times: int = 1) -> None:
        """Controller, then plugin."""
        for _ in range(times):
            self.settle(passes=1)
            self.plugin()
            self.pass_time(1.0)
            self.wall += 1.0

    def wants_slice(self, name: str, memory: str = "9Gi") -> None:
        self.api.create(RESOURCE_CLAIMS, claim_of(name, names.CLASS_MIG, {"memory": memory}))
        self.pod(name, name)

    def wants_card(self, name: str) -> None:
        self.api.create(RESOURCE_CLAIMS, claim_of(name, names.CLASS_GPU, {}))
        self.pod(name, name)

    def journal(self) -> Any:
        return JournalFile(self.state, Disk()).journal

    def last_reason(self, name: str) -> str:
        """What the claim was told last."""
        told = [one for one in self.told if objects.name(one.about[0]) == name]
        return f"{told[-1].reason}: {told[-1].message}" if told else ""


def claim_of(name: str, device_class_name: str, requests: dict[str, str]) -> Object:
    exactly: Object = {"deviceClassName": device_class_name}
    if requests:
        exactly["capacity"] = {"requests": requests}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def node_of(name: str) -> Object:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
