"""The files of one claim.

    <state>/claims/<uid>/*.node              device nodes that the host's /dev lacks
                                             (nvidia_driver/device_nodes.py)
    <state>/claims/<uid>/*                   mounted into containers: metadata, NCCL topology
                                             (cdi/container_files.py)
    <state>/network/<uid>.json               read when the pod's sandbox is created
                                             (node_state/claim_network.py)
    <state>/prepared/<uid>.json              read by the NRI hook (node_state/prepared_claim.py)
    <cdi>/koordra.io-claim_<uid>.json        read by the container runtime (cdi/claim_spec.py)

They are written in this order and removed in reverse, so that no container gets a device that the hook does
not know. All are made from the claim's record and can be rewritten at any time. Only files with exactly our
own names are ever removed; the CDI directory is shared with other drivers.

What others do to them is put right: files that are missing, and files that say something else. Of each file
the identity is remembered that it had before it was last read and found right (Disk.identity), so that a
claim whose files are as they were costs a few calls of lstat, and only others are read.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from koordra.errors import CDIError, CheckpointError, NodeError, one_by_one
from koordra.kubelet_plugin.cdi import claim_spec, container_files
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.nvidia_driver.device_nodes import is_node, own_nodes
from koordra.kubelet_plugin.settings import NodePaths
from koordra.logs import get_logger
from koordra.node_state import claim_network, layout, prepared_claim
from koordra.node_state.claim_network import ClaimNetwork, PlannedDevice
from koordra.node_state.claim_ref import is_claim_uid
from koordra.node_state.disk import TEMPORARY, Disk, reported
from koordra.node_state.prepared_claim import PreparedClaim, PreparedDevice
from koordra.node_state.selinux import give_to_containers
from koordra.topology.location import DeviceNode

log = get_logger(__name__)


def for_hook(record: ClaimRecord) -> PreparedClaim:
    """The record for the NRI hook. NCCL_TOPO_FILE is left out of the variables: nothing can be merged in the
    name of a file, and what one claim's file does not say NCCL finds out by itself."""
    ids = claim_spec.device_ids(record)
    return PreparedClaim(
        ref=record.ref,
        nonce=record.nonce,
        marker=record.ref.marker,
        memlock=record.memlock,
        devices=tuple(
            PreparedDevice(
                **device.common,
                cdi_devices=(ids[index],),
                env=tuple(
                    (name, value)
                    for name, value in device.edits.env
                    if name != container_files.TOPOLOGY_VARIABLE
                ),
            )
            for index, device in enumerate(record.devices)
        ),
    )


def network_of(record: ClaimRecord) -> ClaimNetwork:
    return ClaimNetwork(
        record.ref,
        record.pods,
        tuple(PlannedDevice(each.device, each.network) for each in record.devices if each.network),
    )


@dataclass(frozen=True, slots=True)
class _File:
    """`kind`: the error that its failing is."""

    kind: type[NodeError]
    path: Path
    data: bytes
    mode: int
    durable: bool = True


class ClaimFiles:
    """Writes and removes the files of claims. The caller holds the state lock."""

    def __init__(self, paths: NodePaths, disk: Disk) -> None:
        self._paths = paths
        self._disk = disk
        self._known: dict[str, dict[Path, tuple[int, ...] | None]] = {}

    def write(self, record: ClaimRecord, file_contents: Mapping[str, bytes]) -> None:
        """Raises CDIError or CheckpointError, after which any of the files may be there."""
        self._known.pop(record.ref.uid, None)
        for path, node in self._nodes(record).items():
            if not is_node(path, node):
                with reported(CheckpointError, path, "made"):
                    self._disk.make_node(path, node)
        for file in self._files(record, file_contents):
            with reported(file.kind, file.path, "written"):
                self._disk.replace(file.path, file.data, mode=file.mode, durable=file.durable)
        folder = self._paths.claim_folder(record.ref.uid)
        with reported(CheckpointError, folder, "labelled for containers"):
            give_to_containers(folder)

    def _files(self, record: ClaimRecord, file_contents: Mapping[str, bytes]) -> list[_File]:
        """In the order of writing."""
        paths, uid = self._paths, record.ref.uid
        folder = paths.claim_folder(uid)
        found = [
            _File(CheckpointError, folder / name, data, container_files.MODE, durable=False)
            for name, data in sorted(file_contents.items())
        ]
        if record.networked:
            network = claim_network.encode(network_of(record))
            found.append(_File(CheckpointError, paths.network_file(uid), network, layout.MODE))
        hook = prepared_claim.encode(for_hook(record))
        spec = claim_spec.encode(record, root=paths.root)
        found.append(_File(CheckpointError, paths.prepared_file(uid), hook, layout.MODE))
        found.append(_File(CDIError, paths.cdi_file(uid), spec, claim_spec.MODE))
        return found

    def _nodes(self, record: ClaimRecord) -> dict[Path, DeviceNode]:
        edits = (device.edits for device in record.devices)
        return own_nodes(edits, self._paths.claim_folder(record.ref.uid))

    def unchanged(self, record: ClaimRecord) -> bool:
        """Whether nobody touched the files since they were read as they should be."""
        known = self._known.get(record.ref.uid)
        return known is not None and self._identities(known) == known and not self._lost_nodes(record)

    def altered(self, record: ClaimRecord, file_contents: Mapping[str, bytes]) -> list[Path]:
        """The files that are missing or are not as they should be, by reading them."""
        files = self._files(record, file_contents)
        identities = self._identities(file.path for file in files)
        found = [file.path for file in files if not self._as_written(file)] + self._lost_nodes(record)
        if not found:
            self._known[record.ref.uid] = identities
        return found

    def _lost_nodes(self, record: ClaimRecord) -> list[Path]:
        return [path for path, node in self._nodes(record).items() if not is_node(path, node)]

    def _as_written(self, file: _File) -> bool:
        with reported(file.kind, file.path, "read"):
            identity = self._disk.identity(file.path)
            if identity is None or stat.S_IMODE(identity[4]) != file.mode:
                return False
            return self._disk.read(file.path) == file.data

    def _identities(self, paths: Iterable[Path]) -> dict[Path, tuple[int, ...] | None]:
        found = {}
        for path in paths:
            with reported(CheckpointError, path, "looked at"):
                found[path] = self._disk.identity(path)
        return found

    def remove(self, uid: str) -> None:
        """Remove what is there, the CDI file first: from then on no container can be given the devices."""
        paths = self._paths
        self._known.pop(uid, None)
        for kind, path in (
            (CDIError, paths.cdi_file(uid)),
            (CheckpointError, paths.prepared_file(uid)),
            (CheckpointError, paths.network_file(uid)),
        ):
            with reported(kind, path, "removed"):
                self._disk.remove(path)
        with reported(CheckpointError, paths.claim_folder(uid), "removed"):
            self._disk.remove_folder(paths.claim_folder(uid))

    def hook_records(self) -> dict[str, bytes]:
        with reported(CheckpointError, self._paths.prepared, "read"):
            found = {uid: self._disk.read(self._paths.prepared_file(uid)) for uid in self.recorded()}
        return {uid: data for uid, data in found.items() if data is not None}

    def networks(self) -> tuple[ClaimNetwork, ...]:
        return claim_network.read_networks(self._paths, self._disk)

    def claims(self) -> set[str]:
        return self.recorded() | set(filter(None, map(claim_spec.claim_of_file, self._cdi_names())))

    def _cdi_names(self) -> list[str]:
        with reported(CDIError, self._paths.cdi, "listed"):
            return self._disk.names(self._paths.cdi)

    def recorded(self) -> set[str]:
        """The uids of all claims that have a record for the hook; unlike the CDI directory it survives a
        reboot."""
        with reported(CheckpointError, self._paths.prepared, "listed"):
            return set(filter(None, map(layout.claim_of_file, self._disk.names(self._paths.prepared))))

    def remove_stale(self, keep: set[str]) -> None:
        """Remove our files of claims that are not in `keep`, and temporary files."""
        with one_by_one() as one:
            for kind, folder, claim_of in (
                (CDIError, self._paths.cdi, claim_spec.claim_of_file),
                (CheckpointError, self._paths.prepared, layout.claim_of_file),
                (CheckpointError, self._paths.network, layout.claim_of_file),
                (CheckpointError, self._paths.attached, layout.claim_of_file),
            ):
                with one(), reported(kind, folder, "cleaned up"):
                    for name in self._disk.names(folder):
                        uid = claim_of(name.removesuffix(TEMPORARY))
                        if uid is not None and (name.endswith(TEMPORARY) or uid not in keep):
                            with one(), reported(kind, folder / name, "removed"):
                                self._disk.remove(folder / name)
                                log.info("stale_file_removed", path=str(folder / name))
            folders = self._paths.claims
            with one(), reported(CheckpointError, folders, "cleaned up"):
                for name in self._disk.names(folders):
                    if is_claim_uid(name) and name not in keep:
                        with one(), reported(CheckpointError, folders / name, "removed"):
                            self._disk.remove_folder(self._paths.claim_folder(name))
