"""The kubelet's side of the Container Runtime Interface: pods, containers, exec."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from grpc_tools import protoc

from tests.e2e.images import BUSYBOX
from tests.patience import PATIENCE

_TRIES = 50
_FOR_NOW = "its network is still being made or taken back; tried again"
"""What the hook says to a container that came while something else was done with its pod's network. The
kubelet asks again, and so does `create`."""

HERE = Path(__file__).parent
FOREVER = ("/bin/sleep", "2147483647")
_PROPAGATIONS = {"": 0, "HostToContainer": 1, "Bidirectional": 2}


@dataclass(frozen=True, slots=True)
class Output:
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class HostMount:
    """`propagation` as a manifest says it, empty for none."""

    host: str
    container: str
    read_only: bool = False
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class HostDevice:
    host: str
    container: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a pod manifest and the kubelet say about a container. `target`: the container whose processes an
    ephemeral one sees; `memory`: its limit in bytes; an empty `command`: the image's own entry point, with
    `args`; `log`: below the pod's folder of logs."""

    cdi: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    repeated_env: Sequence[tuple[str, str]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[HostMount] = ()
    devices: Sequence[HostDevice] = ()
    capabilities: Sequence[str] = ("MKNOD",)
    dropped: Sequence[str] = ()
    privileged: bool = False
    target: str = ""
    memory: int = 0
    image: str = BUSYBOX
    read_only_root: bool = False
    user: int | None = None
    command: Sequence[str] = FOREVER
    args: Sequence[str] = ()
    log: str = ""


def compile_proto(folder: Path) -> tuple[ModuleType, ModuleType]:
    """The messages and the stubs of cri.proto."""
    arguments = ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--grpc_python_out={folder}", "cri.proto"]
    if protoc.main(arguments) != 0:
        raise RuntimeError("cri.proto does not compile")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("cri_pb2"), importlib.import_module("cri_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


class Cri:
    """One containerd. Errors are grpc.RpcError, as the kubelet gets them. `made`: ids of all pods and
    containers."""

    def __init__(self, socket: Path, modules: tuple[ModuleType, ModuleType]) -> None:
        self._messages: Any = modules[0]
        # A container's status repeats its whole spec.
        limit = [("grpc.max_receive_message_length", 64 << 20)]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=limit)
        self._stub = modules[1].RuntimeServiceStub(self._channel)
        self._configs: dict[str, Any] = {}
        self.made: list[str] = []

    def close(self) -> None:
        self._channel.close()

    def version(self) -> str:
        return str(self._stub.Version(self._messages.VersionRequest(), timeout=PATIENCE).runtime_version)

    def run_pod(
        self,
        name: str,
        *,
        namespace: str = "team-a",
        privileged: bool = False,
        annotations: Mapping[str, str] | None = None,
        own_network: bool = False,
        uid: str = "",
        first_user: int = 0,
        host_pid: bool = False,
        logs: str = "",
    ) -> str:
        """A pod on the host's network, since there is no CNI here; `own_network` needs one. `first_user`: the
        node's user that is root in it (`hostUsers: false`); 0: no user namespace of its own. `logs`: a folder
        for what its containers write."""
        network = self._messages.POD if own_network else self._messages.NODE
        pid = self._messages.NODE if host_pid else self._messages.CONTAINER
        host = self._messages.NamespaceOption(network=network, pid=pid)
        if first_user:
            users = [self._messages.IDMapping(host_id=first_user, container_id=0, length=65536)]
            host.userns_options.CopyFrom(
                self._messages.UserNamespace(mode=self._messages.POD, uids=users, gids=users)
            )
        config = self._messages.PodSandboxConfig(
            metadata=self._messages.PodSandboxMetadata(
                name=name, uid=uid or f"uid-of-{name}", namespace=namespace
            ),
            annotations=annotations,
            log_directory=logs,
            linux=self._messages.LinuxPodSandboxConfig(
                security_context=self._messages.LinuxSandboxSecurityContext(
                    namespace_options=host, privileged=privileged
                )
            ),
        )
        pod: str = self._stub.RunPodSandbox(
            self._messages.RunPodSandboxRequest(config=config), timeout=PATIENCE
        ).pod_sandbox_id
        self._configs[pod] = config
        self.made.append(pod)
        return pod

    def create(self, pod: str, name: str, spec: ContainerSpec) -> str:
        messages = self._messages
        namespaces = messages.NamespaceOption()
        namespaces.CopyFrom(self._configs[pod].linux.security_context.namespace_options)
        if spec.target:
            namespaces.pid, namespaces.target_id = messages.TARGET, spec.target
        security = messages.LinuxContainerSecurityContext(
            capabilities=messages.Capability(
                add_capabilities=spec.capabilities, drop_capabilities=spec.dropped
            ),
            privileged=spec.privileged,
            namespace_options=namespaces,
            run_as_user=None if spec.user is None else messages.Int64Value(value=spec.user),
            readonly_rootfs=spec.read_only_root,
        )
        config = messages.ContainerConfig(
            metadata=messages.ContainerMetadata(name=name),
            image=messages.ImageSpec(image=spec.image),
            command=spec.command,
            args=spec.args,
            log_path=spec.log,
            envs=[
                messages.KeyValue(key=key, value=value)
                for key, value in (*spec.env.items(), *spec.repeated_env)
            ],
            mounts=[
                messages.Mount(
                    container_path=mount.container,
                    host_path=mount.host,
                    readonly=mount.read_only,
                    propagation=_PROPAGATIONS[mount.propagation],
                )
                for mount in spec.mounts
            ],
            devices=[
                messages.Device(container_path=device.container, host_path=device.host, permissions="rwm")
                for device in spec.devices
            ],
            annotations=spec.annotations,
            linux=messages.LinuxContainerConfig(
                security_context=security,
                resources=messages.LinuxContainerResources(memory_limit_in_bytes=spec.memory),
            ),
            CDI_devices=[messages.CDIDevice(name=device) for device in spec.cdi],
        )
        request = messages.CreateContainerRequest(
            pod_sandbox_id=pod, config=config, sandbox_config=self._configs[pod]
        )
        for _ in range(_TRIES):
            try:
                self.made.append(str(self._stub.CreateContainer(request, timeout=PATIENCE).container_id))
                return self.made[-1]
            except grpc.RpcError as error:
                if _FOR_NOW not in str(error):
                    raise
                refused = error
            time.sleep(0.2)
        raise refused

    def start(self, container: str) -> None:
        self._stub.StartContainer(
            self._messages.StartContainerRequest(container_id=container), timeout=PATIENCE
        )

    def run(self, pod: str, name: str, spec: ContainerSpec) -> str:
        """Create and start."""
        container = self.create(pod, name, spec)
        self.start(container)
        return container

    def resize(self, container: str, *, memory: int) -> None:
        """In-place resize, as the kubelet asks for it."""
        resources = self._messages.LinuxContainerResources(
            cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory_limit_in_bytes=memory
        )
        self._stub.UpdateContainerResources(
            self._messages.UpdateContainerResourcesRequest(container_id=container, linux=resources),
            timeout=PATIENCE,
        )

    def shell(self, container: str, script: str) -> Output:
        """Run a shell script in the container as root."""
        request = self._messages.ExecSyncRequest(
            container_id=container, cmd=["/bin/sh", "-c", f"({script}) 2>&1"], timeout=60
        )
        answer = self._stub.ExecSync(request, timeout=PATIENCE)
        return Output(answer.exit_code, answer.stdout.decode() + answer.stderr.decode())

    def oci_spec(self, container: str) -> str:
        """What the runtime gave to runc, as JSON text inside the verbose status."""
        request = self._messages.ContainerStatusRequest(container_id=container, verbose=True)
        return str(self._stub.ContainerStatus(request, timeout=PATIENCE).info["info"])

    def is_running(self, container: str) -> bool:
        request = self._messages.ContainerStatusRequest(container_id=container)
        answer = self._stub.ContainerStatus(request, timeout=PATIENCE)
        return bool(answer.status.state == self._messages.CONTAINER_RUNNING)

    def pods(self) -> list[str]:
        answer = self._stub.ListPodSandbox(self._messages.ListPodSandboxRequest(), timeout=PATIENCE)
        return [pod.id for pod in answer.items]

    def remove_pod(self, pod: str) -> None:
        """Stop and remove the pod with its containers.

        Asked again while the runtime fails, as the kubelet does: containerd answers UNKNOWN ("ttrpc: closed")
        where a container's shim ends while it is told to kill it. The last failure is raised.
        """
        attempts = 5
        for attempt in range(attempts):
            try:
                self._stub.StopPodSandbox(
                    self._messages.StopPodSandboxRequest(pod_sandbox_id=pod), timeout=PATIENCE
                )
                self._stub.RemovePodSandbox(
                    self._messages.RemovePodSandboxRequest(pod_sandbox_id=pod), timeout=PATIENCE
                )
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNKNOWN or attempt == attempts - 1:
                    raise
                time.sleep(0.2)
