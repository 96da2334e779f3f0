"""Claims that no API server has, prepared by the plugin's own code.

    claim object, allocated ─> DeviceState.prepare ─> checkpoint, limiter's region, CDI spec on disk

Everything lies below a folder of the self test: the state directory, the CDI directory. A claim is undone by
Unprepare, so that the same card can be tried whole and in shares, one after the other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.api import kinds, names
from koordra.api.allocation import FROM_CLASS
from koordra.api.objects import Object
from koordra.api.opaque.isolation import node_policy
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.api.opaque.parameters import API_VERSION, CoresPolicy
from koordra.errors import NotFound
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.cdi.hook_program import HookProgram
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.selftest.spec_edits import edits_of, hooks_of
from koordra.kubelet_plugin.settings import NodePaths
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.quantity import canonical
from koordra.topology.machine import Gpu
from koordra.topology.problems import Discovery

POOL: Final = "selftest"
NAMESPACE: Final = "koordra-selftest"
LIMITER: Final = LimiterIsolation.name


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A claim for this card. `memory_bytes` None: all of it; `cores`: percent of its time, and never more;
    0: none."""

    name: str
    gpu: Gpu
    memory_bytes: int | None = None
    isolation: str = NO_ISOLATION
    cores: int = 0

    def object(self, uid: str) -> Object:
        """As the API server would return it."""
        memory = self.memory_bytes or self.gpu.memory_bytes or 0
        result = {
            "request": "gpu",
            "driver": names.DRIVER,
            "pool": POOL,
            "device": self.gpu.name,
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {
                names.CAPACITY_MEMORY: canonical(memory),
                names.CAPACITY_CORES: str(self.cores),
                names.CAPACITY_SLOTS: "1",
            },
        }
        return {
            "apiVersion": kinds.RESOURCE_CLAIMS.api_version,
            "kind": kinds.RESOURCE_CLAIMS.kind,
            "metadata": {"namespace": NAMESPACE, "name": self.name, "uid": uid},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result], "config": self._config}}},
        }

    @property
    def _config(self) -> list[Object]:
        said = {"apiVersion": API_VERSION, "kind": "GpuConfig", "coresPolicy": CoresPolicy.HARD.value}
        opaque = {"driver": names.DRIVER, "parameters": said}
        return [{"source": FROM_CLASS, "opaque": opaque}] if self.cores else []


@dataclass(frozen=True, slots=True)
class AppliedClaim:
    """A prepared claim, and what its CDI spec says. `limit` is the memory that a limiter keeps it to, None
    for none; `region` the limiter's folder of the claim, None without one."""

    name: str
    uid: str
    gpu: Gpu
    limit: int | None
    spec: Object
    edits: ContainerEdits
    hooks: tuple[Object, ...]
    region: Path | None


class _Claims:
    """Serves claims by name."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Object] = {}

    def get(self, namespace: str, name: str) -> Object:
        try:
            return self.by_name[namespace, name]
        except KeyError:
            raise NotFound(f"{namespace}/{name}", code=404, reason="NotFound") from None


class ClaimPreparation:
    """Prepares claims for cards of this machine below `folder`; `libraries` are the folders that may have
    the built limiter and the CDI hook."""

    def __init__(
        self, found: Discovery, *, root: Path, folder: Path, libraries: tuple[Path, ...], homes: HomeSource
    ) -> None:
        self._found = replace(found, problems=())
        """Its problems are the step discovery's."""
        self._paths = NodePaths(root=root, state=folder / "state", cdi=folder / "cdi")
        self._homes = homes
        self._hook = HookProgram(
            (folder / "hook",), installed=(*libraries, *(each / "cdi-hook" for each in libraries))
        )
        self.contexts = Contexts(folder / "state" / "contexts.json", machine=lambda: found.machine)
        self.limiter = LimiterIsolation(
            self._paths.state, installed=libraries, context_bytes=self.contexts.bytes_for, cores=True
        )

    @contextmanager
    def prepared(self, wanted: WantedClaim) -> Iterator[AppliedClaim]:
        """Raises PrepareError, CheckpointError and CDIError, as the plugin would."""
        claims, uid = _Claims(), str(uuid.uuid4())
        ref = ClaimRef(NAMESPACE, wanted.name, uid)
        claims.by_name[ref.namespace, ref.name] = wanted.object(uid)
        inventory = InventorySource(
            self._paths.root,
            offering=Offering(isolation=node_policy([wanted.isolation])),
            homes=self._homes,
        )
        inventory.set(self._found)
        state = DeviceState(
            node=POOL,
            paths=self._paths,
            claims=claims,
            inventory=inventory.current,
            backends=backends(self.limiter),
            disk=Disk(),
            hook_program=self._hook.path,
        )
        record = state.prepare(ref)
        try:
            spec = json.loads(self._paths.cdi_file(uid).read_bytes())
            devices = claim_spec.device_ids(record)
            limited = wanted.isolation == LIMITER
            yield AppliedClaim(
                name=wanted.name,
                uid=uid,
                gpu=wanted.gpu,
                limit=wanted.memory_bytes if limited else None,
                spec=spec,
                edits=edits_of(spec, devices),
                hooks=hooks_of(spec, devices),
                region=self.limiter.claims / uid if limited else None,
            )
        finally:
            state.unprepare(ref)
