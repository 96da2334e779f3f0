"""The whole plugin in a thread of the test, over a fake API server and a machine on disk."""

from __future__ import annotations

import copy
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import KoordraError, NotFound
from koordra.kubelet_plugin.discovery.watcher import MachineWatcher
from koordra.kubelet_plugin.dra.sockets import PluginSockets
from koordra.kubelet_plugin.driver import Driver
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import NodePaths, Settings
from koordra.node_state.disk import Disk
from tests.fakes.node_claims import GPU_0, NODE, claim, gpu, uid
from tests.fakes.slice_api import FakeSliceApi
from tests.patience import PATIENCE


class FakeApi(FakeSliceApi):
    """Also serves claims and watches of the Node. `before_write` is called with every slice before it is
    stored; `asked` counts questions about slices; `statuses` holds the claims whose status was written."""

    claims: dict[str, Object]
    asked = 0
    before_write: Callable[[Object], None] | None = None

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.statuses: list[Object] = []
        self._node_events: queue.SimpleQueue[Object] = queue.SimpleQueue()

    server = "https://api.test"

    def negotiate(self) -> Mapping[str, str]:
        self._answer()
        return {"resourceclaims": "v1", "resourceslices": "v1"}

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        self.asked += 1
        if kind is kinds.RESOURCE_CLAIMS:
            self._answer()
            assert namespace == "team-a"
            if name not in self.claims:
                raise NotFound(f"{name} not found", code=404)
            return copy.deepcopy(self.claims[name])
        return super().get(kind, name)

    def list(self, kind: Kind, **asked: Any) -> tuple[list[Object], str]:
        if kind is kinds.NODES:
            return [super().get(kinds.NODES, self.node["metadata"]["name"])], "1"
        if kind is kinds.DEVICE_HOLDS:  # nobody changes a running share here
            return [], "1"
        self.asked += 1
        return super().list(kind, **asked)

    def watch(
        self, kind: Kind, *, resource_version: str, field_selector: str = "", label_selector: str = ""
    ) -> Iterator[tuple[str, Object]]:
        while kind is kinds.DEVICE_HOLDS:
            time.sleep(1)
            yield "BOOKMARK", {}
        if kind is not kinds.NODES:
            yield from super().watch(kind, resource_version=resource_version, field_selector=field_selector)
            return
        while True:
            try:
                yield "MODIFIED", self._node_events.get(timeout=1)
            except queue.Empty:
                yield "BOOKMARK", {}

    def annotate_node(self, **annotations: str) -> None:
        """Somebody patches the Node; all its annotations are given."""
        self.node["metadata"]["annotations"] = {
            name.replace("__", "/"): value for name, value in annotations.items()
        }
        self.tell_node()

    def tell_node(self) -> None:
        """The Node is told as it is now."""
        self._node_events.put(copy.deepcopy(self.node))

    def create(self, kind: Kind, body: Object) -> Object:
        if self.before_write is not None:
            self.before_write(body)
        return super().create(kind, body)

    def update(self, kind: Kind, body: Object) -> Object:
        if self.before_write is not None:
            self.before_write(body)
        return super().update(kind, body)

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        assert (kind, namespace, subresource) == (kinds.RESOURCE_CLAIMS, "team-a", "status")
        self.claims[name]["status"].update(body["status"])
        self.statuses.append(body)
        return self.claims[name]

    def devices(self) -> dict[str, dict[str, Any]]:
        """What the slices offer, by name."""
        slices = list(self.slices.values())
        return {device["name"]: device for one in slices for device in one["spec"].get("devices", ())}


class RunningPlugin:
    """`error` is what `run` raised; `more`: other settings."""

    def __init__(
        self,
        folder: Path,
        machine_root: Path,
        *,
        watcher: Callable[[Path], MachineWatcher] | None = None,
        offering: Offering | None = None,
        disk: Disk | None = None,
        api: FakeApi | None = None,
        **more: Any,
    ) -> None:
        self.kubelet_root, self.pod_uid = folder, more.get("pod_uid")
        self.paths = NodePaths(root=machine_root, state=folder / "plugins" / "koordra.io", cdi=folder / "cdi")
        self.api = api or FakeApi(NODE)
        self.api.claims = {"claim-1": claim(1, gpu("gpu", GPU_0))}
        settings = Settings(
            node=NODE, kubelet_root=folder, paths=self.paths, offering=offering or Offering(), **more
        )
        self.driver = Driver(settings, self.api, watcher=watcher, disk=disk)  # type: ignore[arg-type]
        self.stop = threading.Event()
        self.error: KoordraError | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.driver.run(self.stop)
        except KoordraError as error:
            self.error = error

    @contextmanager
    def serving(self) -> Iterator[RunningPlugin]:
        """From the first call that a kubelet could make until the end."""
        self.thread.start()
        try:
            assert wait_for(self.registration.exists), self.error
            yield self
        finally:
            self.stop.set()
            self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    @property
    def registration(self) -> Path:
        return PluginSockets.below(self.kubelet_root, pod_uid=self.pod_uid).registration

    def endpoint(self) -> str:
        with grpc.insecure_channel(f"unix://{self.registration}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            return str(stub.GetInfo(pluginregistration_pb2.InfoRequest()).endpoint)

    def prepare(self) -> Any:
        """The answer for claim 1."""
        with grpc.insecure_channel(f"unix://{self.endpoint()}") as channel:
            named = dra_v1_pb2.Claim(namespace="team-a", name="claim-1", uid=uid(1))
            request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[named])
            return dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request).claims[uid(1)]

    def unprepare(self) -> Any:
        """Likewise."""
        with grpc.insecure_channel(f"unix://{self.endpoint()}") as channel:
            named = dra_v1_pb2.Claim(namespace="team-a", name="claim-1", uid=uid(1))
            request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[named])
            return dra_v1_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request).claims[uid(1)]

    def guarded(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.paths.guarded.read_text())
        return found


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
