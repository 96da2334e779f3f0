"""Stand-ins of other stacks' node programs, for a real kubelet: a device plugin over the kubelet's own
socket, and a DRA driver over the folder that the kubelet watches. They give what they are asked for, as the
real ones do, and know nothing of koordra.

The device plugin API (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1) is so small that its messages are written
by hand; the DRA API is koordra's own copy.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.peers_on_node import DEVICE_PLUGINS

API: Final = "v1beta1"


def text(number: int, value: str) -> bytes:
    """A string field of a message."""
    return part(number, value.encode())


def part(number: int, value: bytes) -> bytes:
    """A field that holds a message or a string; none here is longer than 2 MiB."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Those of length-delimited type, which are all that requests of the kubelet have."""
    at = 0
    while at < len(message):
        number, at = message[at] >> 3, at + 1
        length, shift = 0, 0
        while True:
            byte, at = message[at], at + 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield number, message[at : at + length]
        at += length


class DevicePlugin:
    """Gives out `devices`, by id their nodes on the host, which containers see in /dev."""

    def __init__(self, resource: str, devices: dict[str, Path]) -> None:
        self._folder = Path("/") / DEVICE_PLUGINS
        self._resource, self._devices = resource, devices
        self._name = "koordra-test.sock"
        self._ends = threading.Event()
        self._server: Any = None
        self.given: list[str] = []

    def start(self) -> None:
        self._ends.clear()
        (self._folder / self._name).unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers([self._handlers()])
        self._server.add_insecure_port(f"unix://{self._folder / self._name}")
        self._server.start()
        with grpc.insecure_channel(f"unix://{self._folder / 'kubelet.sock'}") as channel:
            register = channel.unary_unary(f"/{API}.Registration/Register")
            message = text(1, API) + text(2, self._name) + text(3, self._resource)
            register(message, timeout=60, wait_for_ready=True)  # the kubelet may be starting

    def stop(self) -> None:
        self._ends.set()
        self._server.stop(1).wait()
        (self._folder / self._name).unlink(missing_ok=True)

    @property
    def serves(self) -> bool:
        return self._server is not None and not self._ends.is_set()

    def kubelet_restarted(self) -> bool:
        """A kubelet that starts removes the sockets there are; False while it takes no registration."""
        self.stop()
        try:
            self.start()
        except grpc.RpcError:
            return False
        return True

    def end(self) -> None:
        if self.serves:
            self.stop()

    def _handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            f"{API}.DevicePlugin",
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _message, _call: b""),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list),
                "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
                "PreStartContainer": grpc.unary_unary_rpc_method_handler(lambda _message, _call: b""),
            },
        )

    def _list(self, _message: bytes, _call: Any) -> Iterator[bytes]:
        yield b"".join(part(1, text(1, each) + text(2, "Healthy")) for each in self._devices)
        self._ends.wait()

    def _allocate(self, message: bytes, _call: Any) -> bytes:
        answers = []
        for _, asked in fields(message):
            ids = [value.decode() for number, value in fields(asked) if number == 1]
            self.given += ids
            specs = b"".join(
                part(
                    3,
                    text(1, f"/dev/{self._devices[each].name}")
                    + text(2, str(self._devices[each]))
                    + text(3, "rw"),
                )
                for each in ids
            )
            env = part(1, text(1, "NVIDIA_VISIBLE_DEVICES") + text(2, ",".join(ids)))
            answers.append(part(1, env + specs))
        return b"".join(answers)


class DraDriver:
    """Publishes `devices`, by name their nodes on the host and their attributes, and prepares claims that are
    allocated some: each device once, by a CDI file. What it has prepared it forgets with its process, as
    far as the kubelet can tell: unprepare of an unknown claim succeeds."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        kubelet_root: Path,
        cdi: Path,
        *,
        name: str,
        devices: dict[str, tuple[Path, Object]],
    ) -> None:
        self._client, self._node, self._cdi = client, node, cdi
        self._name, self._devices = name, devices
        self._dra = kubelet_root / "plugins" / name / "dra.sock"
        self._registration = kubelet_root / "plugins_registry" / f"{name}-reg.sock"
        self._slice = f"{node}-{name}"
        self._server: Any = None
        self._prepared: dict[str, set[str]] = {}

    def start(self) -> None:
        self._publish()
        self._dra.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4))
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        for path in (self._dra, self._registration):
            path.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix://{path}")
        self._server.start()

    def stop(self) -> None:
        """Its slices go too: the kubelet would delete them half a minute later."""
        if self._server is not None:
            with suppress(NotFound):
                self._client.delete(kinds.RESOURCE_SLICES, self._slice)
            self._registration.unlink(missing_ok=True)
            self._server.stop(1).wait()
            self._dra.unlink(missing_ok=True)
            self._server = None

    def _publish(self) -> None:
        spec = {
            "driver": self._name,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": name, "attributes": attributes} for name, (_, attributes) in self._devices.items()
            ],
        }
        body = {"metadata": {"name": self._slice}, "spec": spec}
        with suppress(Conflict):
            self._client.create(kinds.RESOURCE_SLICES, {**kinds.RESOURCE_SLICES.type_meta, **body})

    def GetInfo(self, _request: Any, _call: Any) -> Any:
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin", name=self._name, endpoint=str(self._dra), supported_versions=["v1.DRAPlugin"]
        )

    def NotifyRegistrationStatus(self, _request: Any, _call: Any) -> Any:
        """A kubelet that starts has deleted the slices of all drivers."""
        self._publish()
        return pluginregistration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, _call: Any) -> Any:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            found = self._client.get(kinds.RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
            results = [
                one
                for one in found["status"]["allocation"]["devices"]["results"]
                if one["driver"] == self._name
            ]
            mine = {one["device"] for one in results}
            others = set().union(*(each for uid, each in self._prepared.items() if uid != claim.uid))
            if twice := mine & others:
                answer.claims[claim.uid].error = f"{sorted(twice)} are another claim's"
                continue
            self._prepared[claim.uid] = mine
            self._write(claim.uid, mine)
            for one in results:
                answer.claims[claim.uid].devices.add(
                    pool_name=one["pool"],
                    device_name=one["device"],
                    request_names=[one["request"]],
                    cdi_device_ids=[f"{self._name}/claim={claim.uid}-{one['device']}"],
                )
        return answer

    def NodeUnprepareResources(self, request: Any, _call: Any) -> Any:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self._prepared.pop(claim.uid, None)
            self._file(claim.uid).unlink(missing_ok=True)
            answer.claims[claim.uid].SetInParent()
        return answer

    def _write(self, uid: str, devices: set[str]) -> None:
        nodes = {name: self._devices[name][0] for name in devices}
        found = [
            {
                "name": f"{uid}-{name}",
                "containerEdits": {"deviceNodes": [{"path": _seen_as(node), "hostPath": str(node)}]},
            }
            for name, node in nodes.items()
        ]
        document = {"cdiVersion": "0.6.0", "kind": f"{self._name}/claim", "devices": found}
        self._file(uid).write_text(json.dumps(document))

    def _file(self, uid: str) -> Path:
        return self._cdi / f"{self._name}-{uid}.json"


def _seen_as(node: Path) -> str:
    """Where a container sees a device node of the machine's tree."""
    return "/dev/" + str(node).rpartition("/dev/")[2]


def waiting_reasons(pod: Any) -> Sequence[str]:
    """Why the pod's containers do not run, as the kubelet says."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    found = [(each.get("state") or {}).get("waiting") or {} for each in statuses]
    return [f"{each.get('reason')}: {each.get('message')}" for each in found if each]
