"""The container runtime double: sandboxes and containers are records on disk, put together by the rules of
CDI and NRI.

    create:  pod's container ─> spec ─> CDI devices from the kubelet ─> NRI plugins ─> adjustments ─> record
    No process is started, unless `commands` is given. A container "runs" until it is stopped, or, for `sleep
    SECONDS`, until that time is over.

Records survive the runtime's death, as containers survive containerd's:

    <dir>/sandboxes/<id>.json    {"id","pod":{"namespace","name","uid","labels","annotations"},
                                  "state":"ready"|"notready"}
    <dir>/containers/<id>.json   {"pod":{"namespace","name","uid"}, "container": its name, "node",
                                  "cdiDevices":["vendor/class=name"], "env":{},
                                  "state":"created"|"running"|"exited",
                                  "deviceNodes":[{"path","type","major","minor"}],
                                  "mounts":[{"destination","source","type","options"}],
                                  "deviceRules":[{"allow","type","major","minor","access"}],
                                  "rlimits":[{"type","hard","soft"}], "resources":{}, "annotations":{},
                                  "netDevices":{}, "hooks":[], "id","sandbox","attempt",
                                  "createdAt","startedAt","finishedAt","exitCode"}

Files are replaced in one step; whoever reads one (`koordra demo` does) sees a whole record. A container that
cannot be created leaves no record.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from koordra._proto.nri import nri_pb2
from koordra.errors import CDIError, NRIError
from koordra_devcluster.container_runtime import cdi, nri_merge, records
from koordra_devcluster.container_runtime.commands import Commands
from koordra_devcluster.container_runtime.nri_messages import container_message, pod_message
from koordra_devcluster.container_runtime.nri_runtime import NriRuntime, NriSettings
from koordra_devcluster.container_runtime.oci import ContainerSpec, DeviceNode, DeviceRule, Mount
from koordra_devcluster.container_runtime.records import Record

CREATED: Final = "created"
RUNNING: Final = "running"
EXITED: Final = "exited"


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """What the kubelet asks for. `cdi_devices`: qualified ids, as NodePrepareResources gave them."""

    name: str
    image: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    cdi_devices: Sequence[str] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    attempt: int = 0


class ContainerRuntime:
    """`directory`: records. `cdi_directories`: later ones win. `host_dev`: the machine's /dev, for privileged
    containers.

    `nri_socket` None: NRI is off. `commands`: what runs the containers' commands.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        cdi_directories: Sequence[Path],
        host_dev: Path | None = None,
        nri_socket: Path | None = None,
        nri_settings: NriSettings | None = None,
        commands: Commands | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self._cdi_directories = tuple(cdi_directories)
        self._host_dev = host_dev
        self._clock = clock
        self._commands = commands
        self._lock = threading.RLock()
        self._sandboxes_dir, self._containers_dir = directory / "sandboxes", directory / "containers"
        self._sandboxes = records.load(self._sandboxes_dir)
        self._containers = records.load(self._containers_dir)
        self.nri = (
            NriRuntime(nri_socket, inventory=self._inventory, update=self._update, settings=nri_settings)
            if nri_socket
            else None
        )

    def start(self) -> None:
        if self.nri is not None:
            self.nri.start()

    def close(self) -> None:
        if self._commands is not None:
            self._commands.close()
        if self.nri is not None:
            self.nri.close()

    # --- sandboxes ---

    def sandbox_of(self, pod_uid: str) -> Record | None:
        """The ready sandbox of a pod."""
        with self._lock:
            found = [
                one
                for one in self._sandboxes.values()
                if one["pod"]["uid"] == pod_uid and one["state"] == "ready"
            ]
        return found[0] if found else None

    def pods(self) -> dict[str, Record]:
        """Every pod that has a sandbox, by uid: its namespace, name and uid."""
        with self._lock:
            return {one["pod"]["uid"]: one["pod"] for one in self._sandboxes.values()}

    def run_sandbox(self, pod: Mapping[str, Any]) -> Record:
        """Raises NRIError when a plugin refuses."""
        sandbox: Record = {"id": secrets.token_hex(32), "pod": dict(pod), "state": "ready"}
        if self.nri is not None:
            try:
                self.nri.pod_event("RunPodSandbox", pod_message(sandbox))
            except NRIError:
                self._pod_event("StopPodSandbox", sandbox)
                self._pod_event("RemovePodSandbox", sandbox)
                raise
        with self._lock:
            self._sandboxes[sandbox["id"]] = sandbox
            records.write(self._sandboxes_dir, sandbox)
        return sandbox

    def remove_pod(self, pod_uid: str) -> None:
        """Stop and remove a pod's containers, then its sandboxes. Repeating it is fine."""
        for record in self.containers_of(pod_uid):
            self.stop_container(record["id"])
            self._container_event("RemoveContainer", record)
            with self._lock:
                self._containers.pop(record["id"], None)
                (self._containers_dir / f"{record['id']}.json").unlink(missing_ok=True)
        with self._lock:
            sandboxes = [one for one in self._sandboxes.values() if one["pod"]["uid"] == pod_uid]
        for sandbox in sandboxes:
            self._pod_event("StopPodSandbox", sandbox)
            self._pod_event("RemovePodSandbox", sandbox)
            with self._lock:
                self._sandboxes.pop(sandbox["id"], None)
                (self._sandboxes_dir / f"{sandbox['id']}.json").unlink(missing_ok=True)

    # --- containers ---

    def containers_of(self, pod_uid: str) -> list[Record]:
        """A pod's containers in the order of their creation."""
        now = self._clock()
        with self._lock:
            found = [one for one in self._containers.values() if one["pod"]["uid"] == pod_uid]
            for record in found:
                if record["state"] == RUNNING and record["endsAt"] is not None and now >= record["endsAt"]:
                    self._finish(record, record["endsAt"], 0)
                elif record["state"] == RUNNING and self._commands and record["command"]:
                    code = self._commands.ended(record["id"])
                    if code is not None:
                        self._finish(record, now, code)
            return sorted((dict(one) for one in found), key=lambda one: one["createdAt"])

    def create_container(self, sandbox: Record, config: ContainerConfig) -> Record:
        """Raises CDIError or NRIError; nothing is left behind then."""
        spec = self._base_spec(config)
        cdi.inject(spec, config.cdi_devices, self._cdi(config.cdi_devices), host_device=cdi.host_device)
        record = self._record(sandbox, config, spec)
        if self.nri is not None:
            pod, container = pod_message(sandbox), container_message(record, spec)
            try:
                collected = self.nri.create_container(pod, container)
                self._adjust(spec, collected.adjust)
            except (NRIError, CDIError):
                self._container_event("StopContainer", record)
                self._container_event("RemoveContainer", record)
                raise
            record = {**self._record(sandbox, config, spec), "id": record["id"]}
        with self._lock:
            self._containers[record["id"]] = record
            records.write(self._containers_dir, record)
        self._container_event("PostCreateContainer", record)
        return record

    def start_container(self, container_id: str) -> None:
        """Raises NRIError when a plugin refuses the start."""
        record = self._containers[container_id]
        if self.nri is not None:
            self.nri.container_event("StartContainer", *self._messages(record))
        if self._commands and record["command"]:
            self._commands.start(record, self._sandboxes[record["sandbox"]]["pod"])
        with self._lock:
            record |= {"state": RUNNING, "startedAt": self._clock(), "endsAt": self._ends_at(record)}
            records.write(self._containers_dir, record)
        self._container_event("PostStartContainer", record)

    def stop_container(self, container_id: str) -> None:
        with self._lock:
            record = self._containers.get(container_id)
            if record is None or record["state"] == EXITED:
                return
            if self._commands is not None:
                self._commands.stop(container_id)
            self._finish(record, self._clock(), 0 if record["state"] == CREATED else 137)
        self._container_event("StopContainer", record)

    def _finish(self, record: Record, at: float, code: int) -> None:
        record |= {"state": EXITED, "finishedAt": at, "exitCode": code}
        records.write(self._containers_dir, record)

    def _ends_at(self, record: Record) -> float | None:
        command = record["command"]
        if self._commands is None and len(command) == 2 and command[0].rpartition("/")[2] == "sleep":
            try:
                return self._clock() + float(command[1])
            except ValueError:
                return None
        return None

    def _base_spec(self, config: ContainerConfig) -> ContainerSpec:
        spec = ContainerSpec(
            env=dict(config.env),
            args=list(config.command),
            device_rules=[DeviceRule(False)],
            annotations=dict(config.annotations),
        )
        for mount in config.mounts:
            spec.add_mount(mount)
        if config.privileged:
            for node in self._host_devices():
                spec.devices[node.path] = node
            spec.device_rules.append(DeviceRule(True))
        return spec

    def _host_devices(self) -> list[DeviceNode]:
        """Every device node of the machine, as a privileged container gets them."""
        found = []
        for path in sorted(self._host_dev.rglob("*")) if self._host_dev else ():
            try:
                kind, major, minor = cdi.host_device(path)
            except CDIError:
                continue
            found.append(DeviceNode(f"/dev/{path.relative_to(self._host_dev or path)}", kind, major, minor))
        return found

    def _cdi(self, wanted: Sequence[str]) -> cdi.Loaded:
        return cdi.load(self._cdi_directories) if wanted else cdi.Loaded()

    def _adjust(self, spec: ContainerSpec, adjust: nri_pb2.ContainerAdjustment) -> None:
        nri_merge.apply_first(spec, adjust)
        names = [device.name for device in adjust.CDI_devices]
        cdi.inject(spec, names, self._cdi(names), host_device=cdi.host_device)
        nri_merge.apply(spec, adjust)

    def _record(self, sandbox: Record, config: ContainerConfig, spec: ContainerSpec) -> Record:
        pod = sandbox["pod"]
        return {
            "id": secrets.token_hex(32),
            "sandbox": sandbox["id"],
            "pod": {name: pod[name] for name in ("namespace", "name", "uid")},
            "container": config.name,
            "node": self.node,
            "image": config.image,
            "command": list(spec.args),
            "cdiDevices": list(config.cdi_devices),
            "env": dict(spec.env),
            "deviceNodes": [
                {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}
                for node in spec.devices.values()
            ],
            "mounts": [asdict(mount) | {"options": list(mount.options)} for mount in spec.mounts],
            "deviceRules": [asdict(rule) for rule in spec.device_rules],
            "rlimits": [asdict(limit) for limit in spec.rlimits],
            "resources": dict(spec.resources),
            "annotations": dict(spec.annotations),
            "netDevices": dict(spec.net_devices),
            "hooks": [asdict(hook) | {"args": list(hook.args)} for hook in spec.hooks],
            "state": CREATED,
            "attempt": config.attempt,
            "createdAt": self._clock(),
            "startedAt": None,
            "endsAt": None,
            "finishedAt": None,
            "exitCode": None,
        }

    # --- NRI ---

    def _inventory(self) -> tuple[list[nri_pb2.PodSandbox], list[nri_pb2.Container]]:
        with self._lock:
            pods = [pod_message(one) for one in self._sandboxes.values()]
            return pods, [container_message(one) for one in self._containers.values()]

    def _update(self, update: nri_pb2.ContainerUpdate) -> bool:
        with self._lock:
            record = self._containers.get(update.container_id)
            if record is None:
                return False
            record["resources"] |= nri_merge.flat_resources(update.linux.resources)
            records.write(self._containers_dir, record)
        return True

    def _messages(self, record: Record) -> tuple[nri_pb2.PodSandbox, nri_pb2.Container]:
        sandbox = self._sandboxes.get(record["sandbox"]) or {"id": record["sandbox"], "pod": record["pod"]}
        return pod_message(sandbox), container_message(record)

    def _container_event(self, method: str, record: Record) -> None:
        """An event after which there is no way back: a plugin's refusal is only heard."""
        if self.nri is not None:
            try:
                self.nri.container_event(method, *self._messages(record))
            except NRIError:
                return

    def _pod_event(self, method: str, sandbox: Record) -> None:
        if self.nri is not None:
            try:
                self.nri.pod_event(method, pod_message(sandbox))
            except NRIError:
                return
