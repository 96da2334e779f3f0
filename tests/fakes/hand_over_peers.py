"""Doubles of the stacks that a node is handed over to and from, as strict as the real ones about what matters
there: who records what, when, and who may refuse.

    DevicePlugin  NVIDIA's. Registers with the kubelet, which records it, and does not record that it ends;
                  the Node's allocatable follows. The kubelet admits a pod while devices are registered, and
                  records what it has before it makes the container; the entry stays after the pod has ended,
                  until the next admission. A kubelet that starts knows of no registration
    Hami          its scheduler's extender locks the node (annotation hami.io/mutex.lock), writes the card on
                  the pod (bind-phase `allocating`) and binds it; its plugin's Allocate takes the node's one
                  such pod, answers its card, writes `success` and unlocks, or fails. Pods share cards
    DraDriver     NVIDIA's. Serves a registration socket; the kubelet records a claim before it calls the
                  driver, and unprepares while the driver runs; each card once, as far as it knows
    Dranet        the same for NICs (`dra.net`)
    Koordinator   no plugin of the kubelet's. koord-manager writes amounts of koordlet's Device into
                  status.allocatable, where they stay when koordlet ends, until somebody sets them to 0; the
                  scheduler binds by what it saw last; the kubelet refuses a pod whose amount the Node does
                  not have; koordlet alone, while it runs, gives a container its card, by
                  NVIDIA_VISIBLE_DEVICES. koordra's controller sees pods late, and says on the Node that
                  there are some; before it takes that back it reads the node's pods anew

Sources: the repositories of these stacks of August 2026 (pkg/device-plugin and pkg/util/nodelock of HAMi,
pkg/koordlet/runtimehooks/hooks/gpu and pkg/slo-controller/noderesource of Koordinator, pkg/driver of dranet).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final, Protocol

from koordra.api import names
from koordra.controller.reconcile.conflicts.conflict_rules import foreign_plugin
from koordra.controller.reconcile.conflicts.handed_over import peers_resource
from koordra.kubelet_plugin.publish.peers_on_node import GPUS, NICS, DeviceKind
from koordra.topology.machine import Machine

Event = tuple[int, Callable[[], None]]
"""How often, and what happens."""
RESOURCE: Final = "nvidia.com/gpu"
LOCK: Final = "hami.io/mutex.lock"
SPLIT: Final = 3
"""Pods of HAMi's on one card, at the most."""


@dataclass
class PeerPod:
    """`device`: its number; `is_made`: its container runs and can use it. A pod that ended is `gone`, its
    records may stay."""

    uid: str
    device: int
    is_made: bool = False
    is_gone: bool = False

    @property
    def lives(self) -> bool:
        return not self.is_gone


class Host(Protocol):
    """What a stack asks of the node it stands on."""

    machine: Machine
    node_object: dict[str, Any]

    @property
    def random(self) -> Random: ...
    def new_uid(self) -> str: ...
    def record(self) -> None:
        """The kubelet writes its files, and the folders of its pods."""

    def happens(self, what: str) -> None: ...
    def devices(self, kind: DeviceKind) -> int:
        """How many of the kind there are."""


@dataclass
class Peer:
    """One stack. `pods`: bound to the node, in order."""

    host: Host
    pods: list[PeerPod] = field(default_factory=list)
    kind: ClassVar[DeviceKind] = GPUS
    driver: ClassVar[str] = ""
    """Of DRA; empty for who is none."""
    by_environment: ClassVar[bool] = False
    """Its containers are told by a variable alone which card the runtime is to give them."""
    answers: bool = False
    """Somebody listens on the driver's socket."""

    def events(self) -> tuple[Event, ...]:
        return ((4, self.admit), (3, self.end_pod))

    def admit(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """Its node programs and all that they gave out are gone."""
        for pod in self.pods:
            pod.is_made, pod.is_gone = False, True
        self.host.record()

    def gives(self, pod: PeerPod) -> bool:
        """Whether a container of the pod that is made now gets the device."""
        return pod.lives

    def entries(self) -> list[dict[str, Any]]:
        """Of the kubelet's checkpoint of devices."""
        return []

    def registered(self) -> dict[str, list[str]]:
        return {}

    def update_node(self) -> None:
        """What the kubelet or a manager writes into the Node by now."""

    def restart_kubelet(self) -> None: ...

    resources: ClassVar[Mapping[str, str]] = {}
    """What its pods ask for."""

    def pod_object(self, pod: PeerPod) -> dict[str, Any]:
        """As its scheduler has bound it."""
        container = {"name": "c", "image": "x", "resources": {"limits": dict(self.resources)}}
        return {
            "metadata": {"name": pod.uid, "namespace": "team", "annotations": self.annotations(pod)},
            "spec": {"nodeName": self.host.node_object["metadata"]["name"], "containers": [container]},
            "status": {"phase": "Succeeded" if pod.is_gone else "Running"},
        }

    def annotations(self, pod: PeerPod) -> dict[str, str]:
        """That its scheduler writes."""
        return {}

    def programs(self, there: bool) -> None:
        """Its node programs are started, or taken off."""
        raise NotImplementedError

    def end_pod(self) -> None:
        living = [pod for pod in self.pods if pod.lives and self.may_end(pod)]
        if living:
            pod = self.host.random.choice(living)
            pod.is_made, pod.is_gone = False, True
            self.host.record()
            self.host.happens(f"{pod.uid} ends")

    def may_end(self, pod: PeerPod) -> bool:
        return True

    def _free(self) -> list[int]:
        taken = {pod.device for pod in self.pods if pod.lives}
        return [at for at in range(self.host.devices(self.kind)) if at not in taken]

    def _gives(self, device: int) -> None:
        pod = PeerPod(self.host.new_uid(), device)
        self.pods.append(pod)
        self.host.record()
        self.host.happens(f"{type(self).__name__} gives {self.kind.type} {device} to {pod.uid}")


@dataclass
class DevicePlugin(Peer):
    resources: ClassVar[Mapping[str, str]] = {RESOURCE: "1"}
    is_registered: bool = False
    was_registered: bool = False
    """As the kubelet's checkpoint says."""

    def events(self) -> tuple[Event, ...]:
        return (*super().events(), (2, self.register))

    def register(self) -> None:
        self.is_registered = not self.is_registered
        self.was_registered = True
        self.host.record()
        self.host.happens(f"the device plugin is {'registered' if self.is_registered else 'gone'}")

    def programs(self, there: bool) -> None:
        if self.is_registered is not there:
            self.register()

    def restart_kubelet(self) -> None:
        self.is_registered = self.was_registered = False

    def leave(self) -> None:
        self.is_registered = False
        super().leave()

    def admit(self) -> None:
        if self.is_registered and (free := self._free()):
            self._forget_ended()
            self._gives(self.host.random.choice(free))

    def _forget_ended(self) -> None:
        """Entries of pods that ended go with the next admission."""
        self.pods = [pod for pod in self.pods if pod.lives]

    def ids(self) -> list[str]:
        return [str(gpu.uuid) for gpu in self.host.machine.gpus]

    def id_of(self, pod: PeerPod) -> str:
        return self.ids()[pod.device]

    def entries(self) -> list[dict[str, Any]]:
        return [
            {
                "PodUID": pod.uid,
                "ContainerName": "c",
                "ResourceName": RESOURCE,
                "DeviceIDs": {"-1": [self.id_of(pod)]},
            }
            for pod in self.pods
        ]

    def registered(self) -> dict[str, list[str]]:
        return {RESOURCE: self.ids()} if self.was_registered else {}

    def update_node(self) -> None:
        number = len(self.ids()) if self.is_registered else 0
        self.host.node_object["status"]["allocatable"][RESOURCE] = str(number)


@dataclass
class Hami(DevicePlugin):
    resources: ClassVar[Mapping[str, str]] = {RESOURCE: "1", "nvidia.com/gpumem": "1000"}
    allocating: PeerPod | None = None
    """Bound, and not admitted: the pod of the lock."""

    def events(self) -> tuple[Event, ...]:
        return (*super().events(), (5, self.bind))

    def bind(self) -> None:
        """The extender; it knows of no plugin that has gone until the Node says so."""
        if self.host.random.random() < 0.05:
            self.expire()
        offered = int(self.host.node_object["status"]["allocatable"].get(RESOURCE, "0"))
        used = [pod.device for pod in self.pods if pod.lives]
        cards = [card for card in range(self.host.devices(GPUS)) if used.count(card) < SPLIT]
        if offered and cards and LOCK not in self._notes:
            self.allocating = PeerPod(self.host.new_uid(), self.host.random.choice(cards))
            self._notes[LOCK] = f"2026-11-28T00:00:00Z,team,{self.allocating.uid}"

    @property
    def _notes(self) -> dict[str, str]:
        found: dict[str, str] = self.host.node_object["metadata"]["annotations"]
        return found

    def expire(self) -> None:
        """The lock of a pod whose admission never came ends after five minutes."""
        self.allocating = None
        self._notes.pop(LOCK, None)

    def admit(self) -> None:
        """The kubelet asks the plugin, which takes the pod that is `allocating`."""
        pod = self.allocating
        if pod is None or not self.is_registered:
            return
        self.expire()
        self._forget_ended()
        self.pods.append(pod)
        self.host.record()
        self.host.happens(f"Hami gives gpu {pod.device} to {pod.uid}")

    def annotations(self, pod: PeerPod) -> dict[str, str]:
        node = self.host.node_object["metadata"]["name"]
        card = f"{DevicePlugin.ids(self)[pod.device]},NVIDIA,1000,0:;"
        return {
            "hami.io/vgpu-node": node,
            "hami.io/bind-phase": "allocating" if pod is self.allocating else "success",
            "hami.io/vgpu-devices-to-allocate": card if pod is self.allocating else "",
            "hami.io/vgpu-devices-allocated": card,
        }

    def ids(self) -> list[str]:
        return [f"{card}-{share}" for card in super().ids() for share in range(SPLIT)]

    def id_of(self, pod: PeerPod) -> str:
        beside = [each.uid for each in self.pods if each.device == pod.device]
        return self.ids()[pod.device * SPLIT + beside.index(pod.uid) % SPLIT]


@dataclass
class DraDriver(Peer):
    driver: ClassVar[str] = "gpu.nvidia.com"

    def events(self) -> tuple[Event, ...]:
        return (*super().events(), (2, self.register))

    def programs(self, there: bool) -> None:
        if self.answers is not there:
            self.register()

    def register(self) -> None:
        self.answers = not self.answers
        self.host.record()
        self.host.happens(f"{self.driver} is {'registered' if self.answers else 'gone'}")

    def leave(self) -> None:
        self.answers = False
        super().leave()

    def admit(self) -> None:
        if self.answers and (free := self._free()):
            self._gives(self.host.random.choice(free))

    def may_end(self, pod: PeerPod) -> bool:
        return self.answers  # a claim is unprepared by its driver


@dataclass
class Dranet(DraDriver):
    kind: ClassVar[DeviceKind] = NICS
    driver: ClassVar[str] = "dra.net"


@dataclass
class Koordinator(Peer):
    by_environment: ClassVar[bool] = True
    resources: ClassVar[Mapping[str, str]] = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    koordlet: bool = False
    seen_amounts: bool = False
    """What its scheduler has seen of the Node."""
    listed: list[PeerPod] = field(default_factory=list)
    """Pods that koordra's controller has seen."""

    def events(self) -> tuple[Event, ...]:
        more = ((2, self.report), (3, self.stop), (3, self.schedulers_see), (5, self.controllers_pass))
        return (*super().events(), *more, (1, self.controller_sees_pods))

    def _amounts(self) -> dict[str, str]:
        found: dict[str, str] = self.host.node_object["status"]["allocatable"]
        return found

    def programs(self, there: bool) -> None:
        if there:
            self.report()
            self.schedulers_see()
        else:
            self.stop()

    def annotations(self, pod: PeerPod) -> dict[str, str]:
        amounts = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
        given = {"gpu": [{"minor": pod.device, "resources": amounts}]}
        return {"scheduling.koordinator.sh/device-allocated": json.dumps(given)}

    def report(self) -> None:
        self.koordlet = True
        self._amounts()["koordinator.sh/gpu-core"] = str(100 * self.host.devices(GPUS))
        self._say(self._why(self.listed))
        self.host.happens("koordlet reports cards")

    def stop(self) -> None:
        """The operator: first the feature gate, then the amounts."""
        self.koordlet = False
        self._amounts()["koordinator.sh/gpu-core"] = "0"
        self.host.happens("koordlet is gone")

    def leave(self) -> None:
        self.stop()
        super().leave()
        self.listed = []
        self.controllers_pass()

    def schedulers_see(self) -> None:
        self.seen_amounts = self._amounts().get("koordinator.sh/gpu-core", "0") != "0"

    def admit(self) -> None:
        """Bound, then admitted by the kubelet."""
        has = self._amounts().get("koordinator.sh/gpu-core", "0") != "0"
        if self.seen_amounts and has and (free := self._free()):
            self._gives(self.host.random.choice(free))

    def gives(self, pod: PeerPod) -> bool:
        return pod.lives and self.koordlet

    # koordra's controller

    def controller_sees_pods(self) -> None:
        self.listed = [pod for pod in self.pods if pod.lives]

    def controllers_pass(self) -> None:
        why = self._why(self.listed)
        self._say(why or self._why(self.read_anew()))

    def read_anew(self) -> list[PeerPod]:
        """A list at the API server's newest version."""
        return [pod for pod in self.pods if pod.lives]

    def _why(self, pods: list[PeerPod]) -> str:
        named = {f"team/{pod.uid}": peers_resource(self.pod_object(pod)) for pod in pods}
        return foreign_plugin(
            self.host.node_object, [_OURS], {key: name for key, name in named.items() if name}
        )

    def _say(self, why: str) -> None:
        found = self.host.node_object["metadata"]["annotations"]
        found.pop(names.NO_GPUS, None)
        if why:
            found[names.NO_GPUS] = why


_OURS: Final = {
    "spec": {
        "driver": names.DRIVER,
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "koordra.io/type": {"string": "gpu"},
                    "koordra.io/allocator": {"string": "controller"},
                },
            }
        ],
    }
}


_TOGETHER: Final[tuple[tuple[type[Peer], ...], ...]] = (
    (DevicePlugin,),
    (DraDriver,),
    (Hami,),
    (Koordinator,),
    (Dranet,),
    (DevicePlugin, Hami, DraDriver, Dranet),
)
STACKS: Final = len(_TOGETHER)


def stacks(host: Host, number: int) -> list[Peer]:
    """Those of one schedule."""
    return [stack(host) for stack in _TOGETHER[number % STACKS]]


def number_of(stack: type[Peer]) -> int:
    """Of the schedules with this stack alone."""
    return _TOGETHER.index((stack,))
