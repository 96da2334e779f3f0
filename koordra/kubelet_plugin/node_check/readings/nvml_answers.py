"""What NVML says of this machine's GPUs, as a document; and the program that asks it.

    python -m koordra.kubelet_plugin.node_check.readings.nvml_answers [LIBRARY]

prints the document that `read_nvml` reads: it is the one of a captured machine (nvml.json of
discovery/nvml_recording.py) with a few fields more, and `error` where the library or the driver cannot be
used::

    {"schema": "koordra.io/nvml/v1", "driverVersion": "580.65.06",
     "gpus": [{"busId": "0000:0f:00.0", "migEnabled": false, "migPending": false, "rowsPending": false,
               "rowsFailed": false, "persistence": true,
               "fabric": {"state": 3, "status": 0, "cluster": "<uuid>", "clique": 1, "healthMask": 0}}]}
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.kubelet_plugin.discovery.nvml_query import NvmlQuery, bus_id_of, normal_bus_id, text
from koordra.kubelet_plugin.nvidia_driver.nvml_session import BY_NAME, NvmlLibrary, NvmlUnavailable
from koordra.topology.partitions import FabricInfo

SCHEMA: Final = "koordra.io/nvml/v1"
COMPLETED: Final = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""
_NO_CLUSTER: Final = str(uuid.UUID(int=0))


@dataclass(frozen=True, slots=True)
class Fabric:
    """`state` is NVML's: 0 not supported, 1 not started, 2 in progress, 3 completed, from where on `status`
    (0 is success) and `health_mask` count. `clique` is None within one node."""

    state: int
    status: int = 0
    clique: FabricInfo | None = None
    health_mask: int = 0


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """What is not known, or not supported by the card, is None."""

    bus_id: str
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    persistence: bool | None = None
    fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class Nvml:
    """`error`: why there is nothing else."""

    driver_version: str | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    error: str = ""


def read_nvml(document: str) -> Nvml | None:
    """None for what is no such document."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    gpus = found.get("gpus")
    version, error = found.get("driverVersion"), found.get("error")
    return Nvml(
        driver_version=version if isinstance(version, str) else None,
        gpus=tuple(filter(None, map(_gpu, gpus if isinstance(gpus, list) else []))),
        error=error if isinstance(error, str) else "",
    )


def _gpu(entry: Any) -> NvmlGpu | None:
    bus_id = normal_bus_id(str(entry.get("busId"))) if isinstance(entry, dict) else None
    if bus_id is None:
        return None
    enabled = _truth(entry, "migEnabled")
    pending = _truth(entry, "migPending")
    return NvmlGpu(
        bus_id,
        mig_enabled=enabled,
        mig_pending=enabled if pending is None else pending,
        rows_pending=_truth(entry, "rowsPending"),
        rows_failed=_truth(entry, "rowsFailed"),
        persistence=_truth(entry, "persistence"),
        fabric=_fabric(entry.get("fabric")),
    )


def _fabric(entry: Any) -> Fabric | None:
    if not isinstance(entry, dict):
        return None
    cluster = entry.get("cluster")
    return Fabric(
        # A recording of discovery has only fabrics that are completed, and does not say so.
        state=_number(entry, "state", COMPLETED),
        status=_number(entry, "status", 0),
        clique=FabricInfo(cluster, _number(entry, "clique", 0))
        if isinstance(cluster, str) and cluster not in ("", _NO_CLUSTER)
        else None,
        health_mask=_number(entry, "healthMask", 0),
    )


def _truth(entry: Mapping[str, Any], name: str) -> bool | None:
    value = entry.get(name)
    return value if isinstance(value, bool) else None


def _number(entry: Mapping[str, Any], name: str, default: int) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def answers(library: NvmlLibrary) -> dict[str, Any]:
    """The document of this machine."""
    try:
        with library.session() as nvml:
            query = NvmlQuery(nvml, [])
            version = text(query.ask("driverVersion", "nvmlSystemGetDriverVersion"))
            count = query.ask("count", "nvmlDeviceGetCount") or 0
            gpus = [gpu for index in range(count) if (gpu := _asked(query, index))]
            return {"schema": SCHEMA, "driverVersion": version, "gpus": gpus}
    except NvmlUnavailable as error:
        return {"schema": SCHEMA, "error": str(error)}


def _asked(query: NvmlQuery, index: int) -> dict[str, Any] | None:
    handle = query.ask("handle", "nvmlDeviceGetHandleByIndex", index)
    card = NvmlQuery(query.nvml, query.problems, handle=handle)
    bus_id = bus_id_of(card.ask("pciBusID", "nvmlDeviceGetPciInfo")) if handle is not None else None
    if bus_id is None:
        return None
    mode = card.ask("migMode", "nvmlDeviceGetMigMode")
    rows = card.ask("rows", "nvmlDeviceGetRemappedRows")
    persistence = card.ask("persistence", "nvmlDeviceGetPersistenceMode")
    found = {
        "migEnabled": bool(mode[0]) if mode else None,
        "migPending": bool(mode[1]) if mode else None,
        "rowsPending": bool(rows[2]) if rows else None,
        "rowsFailed": bool(rows[3]) if rows else None,
        "persistence": None if persistence is None else bool(persistence),
        "fabric": _asked_fabric(card),
    }
    return {"busId": bus_id, **{name: value for name, value in found.items() if value is not None}}


def _asked_fabric(card: NvmlQuery) -> dict[str, Any] | None:
    info = card.nvml.c_nvmlGpuFabricInfo_v2_t()
    if card.ask("fabric", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
        return None
    return {
        "state": int(info.state),
        "status": int(info.status),
        "cluster": str(uuid.UUID(bytes=bytes(info.clusterUuid))),
        "clique": int(info.cliqueId),
        "healthMask": int(info.healthMask),
    }


if __name__ == "__main__":
    named = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    sys.stdout.write(json.dumps(answers(NvmlLibrary(lambda: named) if named else BY_NAME)))
