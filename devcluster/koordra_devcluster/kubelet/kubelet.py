"""One kubelet: the node, its plugins, its pods.

Start-up: the node registers, all ResourceSlices of the node are deleted (drivers publish again by
themselves), plugins and pods are picked up from disk and from the API. Containers of pods that vanished
meanwhile are removed. Pods are worked on by a few threads; each pod by one at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordra.api import kinds
from koordra.api.objects import (
    Object,
    is_deleting,
    key,
    metadata,
    name,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)
from koordra.errors import ApiError, ApiUnreachable, CDIError, Conflict, NotFound, NRIError, PrepareError
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process import lifecycle
from koordra_devcluster.apiserver.resources import CONFIG_MAPS
from koordra_devcluster.container_runtime.commands import Commands
from koordra_devcluster.container_runtime.nri_runtime import NriSettings
from koordra_devcluster.container_runtime.records import Record
from koordra_devcluster.container_runtime.runtime import CREATED, EXITED, ContainerRuntime
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.recorder import Recorder
from koordra_devcluster.controllers.workqueue import WorkQueue
from koordra_devcluster.kubelet import pods as pod_rules
from koordra_devcluster.kubelet.claim_cache import ClaimCache
from koordra_devcluster.kubelet.drivers import CALL_TIMEOUT, WIPE_AFTER, Drivers
from koordra_devcluster.kubelet.names import PodNames
from koordra_devcluster.kubelet.node import NodeHeartbeat, NodeSettings
from koordra_devcluster.kubelet.pods import Problem
from koordra_devcluster.kubelet.registry import PluginRegistry
from koordra_devcluster.kubelet.resources import ResourceManager
from koordra_devcluster.kubelet.volumes import PodVolumes, VolumeError

log = get_logger(__name__)

WORKERS: Final = 4
FIRST_RETRY: Final = 0.5
LONGEST_RETRY: Final = 10.0
POLL: Final = 0.5


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """`directory` holds the node's state; the other paths default to places below it. `run_commands`:
    containers' commands are processes of this machine."""

    node: NodeSettings
    directory: Path
    kubelet_root: Path
    cdi_directories: Sequence[Path]
    nri_socket: Path | None
    nri: NriSettings
    host_dev: Path | None = None
    wipe_after: float = WIPE_AFTER
    call_timeout: float = CALL_TIMEOUT
    run_commands: bool = False


class Kubelet:
    """The kubelet double of one node."""

    def __init__(self, client: KubeClient, settings: KubeletSettings) -> None:
        self._client = client
        self._settings = settings
        self._node = settings.node.name
        self._recorder = Recorder(client, "kubelet", host=self._node)
        self._heartbeat = NodeHeartbeat(client, settings.node)
        self._informers = Informers(
            client, [kinds.PODS], selectors={kinds.PODS: f"spec.nodeName={self._node}"}
        )
        self._informers.listen(kinds.PODS, self._pod_changed)
        self._names = PodNames(client, settings.directory / "names") if settings.run_commands else None
        self.runtime = ContainerRuntime(
            settings.directory,
            node=self._node,
            cdi_directories=settings.cdi_directories,
            host_dev=settings.host_dev,
            nri_socket=settings.nri_socket,
            nri_settings=settings.nri,
            commands=_commands(settings, self._names),
        )
        self.drivers = Drivers(
            self._driver_connected,
            self._wipe,
            wipe_after=settings.wipe_after,
            call_timeout=settings.call_timeout,
        )
        self.resources = ResourceManager(
            ClaimCache(settings.kubelet_root / "dra_manager_state"),
            get_claim=lambda namespace, claim: client.get(kinds.RESOURCE_CLAIMS, claim, namespace=namespace),
            driver=self.drivers.get,
        )
        self._volumes = PodVolumes(
            settings.kubelet_root / "pods",
            lambda namespace, called: client.get(CONFIG_MAPS, called, namespace=namespace),
        )
        self._queue = WorkQueue("pods", self._sync)
        self._retries: dict[str, int] = {}
        self._pod_keys: dict[str, str] = {}

    def start(self, stop: threading.Event) -> None:
        """Returns once the node is registered and its pods are known."""
        if self._heartbeat.register(stop) is None:
            return
        self.runtime.start()
        lifecycle.spawn(lambda: self._wipe_all(stop), name="wipe-slices")
        lifecycle.spawn(lambda: self._heartbeat.run(stop), name="heartbeat")
        registry = PluginRegistry(self._settings.kubelet_root / "plugins_registry", self.drivers)
        lifecycle.spawn(lambda: registry.run(stop), name="plugin-registry")
        if self._names is not None:
            self._names.start(stop)
        self._informers.start(stop)
        self._informers.wait_synced(stop)
        for pod_uid in {*self.runtime.pods(), *self.resources.pods()}:
            self._queue.add(pod_uid)
        for number in range(WORKERS):
            lifecycle.spawn(lambda: self._queue.run(stop), name=f"pods-{number}")
        log.info("kubelet_ready", node=self._node)

    def close(self) -> None:
        self.drivers.close()
        self.runtime.close()

    # --- what wakes pods ---

    def _pod_changed(self, _event: str, pod: Object, /) -> None:
        self._pod_keys[uid(pod)] = key(pod)
        self._queue.add(uid(pod))

    def _driver_connected(self, _driver: str) -> None:
        for pod_uid in {*tuple(self._pod_keys), *self.resources.pods()}:
            self._queue.add(pod_uid)

    # --- slices ---

    def _wipe_all(self, stop: threading.Event) -> None:
        """A kubelet that starts knows no driver: nothing that is published for its node counts."""
        while not stop.is_set():
            try:
                self._wipe("")
                return
            except ApiError as error:
                log.warning("slices_not_wiped", node=self._node, error=str(error))
                stop.wait(1.0)

    def _wipe(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        slices, _ = self._client.list(kinds.RESOURCE_SLICES, field_selector=selector)
        for found in slices:
            try:
                self._client.delete(kinds.RESOURCE_SLICES, name(found), uid=uid(found))
            except (NotFound, Conflict):
                continue

    # --- one pod ---

    def _sync(self, pod_uid: str) -> float | None:
        pod = self._informers.get(kinds.PODS, self._pod_keys.get(pod_uid, ""))
        if pod is None or uid(pod) != pod_uid:
            return self._end(pod_uid, None)
        if is_deleting(pod):
            return self._end(pod_uid, pod)
        if pod_is_finished(pod):
            return self._release(pod_uid, pod)
        return self._run(pod)

    def _end(self, pod_uid: str, pod: Object | None) -> float | None:
        """Containers, claims, sandbox, then the object."""
        for record in self.runtime.containers_of(pod_uid):
            self.runtime.stop_container(record["id"])
        again = self._release(pod_uid, pod)
        if again is not None:
            return again
        self.runtime.remove_pod(pod_uid)
        self._volumes.remove(pod_uid)
        if pod is not None:
            place = metadata(pod)["namespace"]
            with contextlib.suppress(NotFound, Conflict):
                self._client.delete(kinds.PODS, name(pod), namespace=place, uid=pod_uid, grace_period=0)
            log.info("pod_removed", pod=key(pod), node=self._node)
        else:
            self._pod_keys.pop(pod_uid, None)
        self._retries.pop(pod_uid, None)
        return None

    def _release(self, pod_uid: str, pod: Object | None) -> float | None:
        try:
            self.resources.unprepare(pod_uid)
        except PrepareError as error:
            if pod is not None:
                self._recorder.event(pod, "FailedUnprepareDynamicResources", str(error), warning=True)
            log.warning("claims_not_unprepared", pod=pod_uid, error=str(error))
            return self._pause(pod_uid)
        return None

    def _run(self, pod: Object) -> float | None:
        """Bring the pod's containers up; say in its status how far that went."""
        problem: Problem | None = None
        try:
            self._volumes.refresh(pod)
            self._bring_up(pod)
        except ApiUnreachable:
            raise
        except (PrepareError, ApiError) as error:
            problem = Problem("ContainerCreating", "")
            message = f"Failed to prepare dynamic resources: {error}"
            self._recorder.event(pod, "FailedPrepareDynamicResources", message, warning=True)
            log.warning("claims_not_prepared", pod=key(pod), error=str(error))
        except VolumeError as error:
            problem = Problem("ContainerCreating", "")
            self._recorder.event(pod, "FailedMount", f"MountVolume.SetUp failed: {error}", warning=True)
            log.warning("volume_not_made", pod=key(pod), error=str(error))
        except _ContainerError as error:
            problem = Problem(error.reason, str(error))
            self._recorder.event(pod, "Failed", f"Error: {error}", warning=True)
            log.warning("container_not_created", pod=key(pod), error=str(error))
        records = self.runtime.containers_of(uid(pod))
        self._write_status(pod, pod_rules.pod_status(pod, records, problem, datetime.now(UTC)))
        if problem is not None:
            return self._pause(uid(pod))
        self._retries.pop(uid(pod), None)
        return _next_end(records, POLL if self._names else None)

    def _bring_up(self, pod: Object) -> None:
        sandbox = self.runtime.sandbox_of(uid(pod))
        volumes = self._volumes.make(pod)
        if sandbox is None:
            self.resources.prepare(pod)
            try:
                sandbox = self.runtime.run_sandbox(pod_rules.sandbox_pod(pod))
            except NRIError as error:
                raise _ContainerError("CreatePodSandboxError", str(error)) from error
        for container in spec_of(pod).get("containers") or ():
            self._bring_up_container(pod, sandbox, container, volumes)

    def _bring_up_container(
        self, pod: Object, sandbox: Record, container: Object, volumes: Mapping[str, Path]
    ) -> None:
        existing = [
            one for one in self.runtime.containers_of(uid(pod)) if one["container"] == container["name"]
        ]
        again = (
            bool(existing)
            and existing[-1]["state"] == EXITED
            and spec_of(pod).get("restartPolicy") == "Always"
        )
        if existing and not again:
            if existing[-1]["state"] == CREATED:
                self._start(pod, existing[-1], container)
            return
        config = pod_rules.container_config(
            pod,
            container,
            self.resources.cdi_devices(pod, container),
            attempt=len(existing),
            volumes=volumes,
        )
        try:
            record = self.runtime.create_container(sandbox, config)
        except (CDIError, NRIError) as error:
            raise _ContainerError("CreateContainerError", str(error)) from error
        self._start(pod, record, container)

    def _start(self, pod: Object, record: Record, container: Object) -> None:
        try:
            self.runtime.start_container(record["id"])
        except NRIError as error:
            raise _ContainerError("RunContainerError", str(error)) from error
        self._recorder.event(pod, "Started", f"Started container {container['name']}")

    def _write_status(self, pod: Object, wanted: Object) -> None:
        if wanted == status_of(pod):
            return
        body = {**pod, "status": wanted}
        try:
            self._client.update(kinds.PODS, body, subresource="status")
        except NotFound:
            return

    def _pause(self, pod_uid: str) -> float:
        tries = self._retries[pod_uid] = self._retries.get(pod_uid, 0) + 1
        return min(FIRST_RETRY * 2.0 ** min(tries - 1, 10), LONGEST_RETRY)


def _commands(settings: KubeletSettings, names: PodNames | None) -> Commands | None:
    hidden = settings.directory / "machine"
    return Commands(settings.directory, hidden=hidden, hosts=names.file) if names else None


class _ContainerError(NRIError):
    """A sandbox or container could not be created; `reason` goes into the container status."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def _next_end(records: Sequence[Record], poll: float | None) -> float | None:
    """Seconds until the first container that sleeps for a while has slept; `poll`: until processes are looked
    at."""
    now = datetime.now(UTC).timestamp()
    running = [record for record in records if record["state"] != EXITED]
    ends = [record["endsAt"] - now for record in running if record["endsAt"] is not None]
    if poll is not None and running:
        return poll
    return max(0.05, min(ends)) if ends else None
