"""Makes the virtual functions of NICs, where the operator wants them and nobody else has a say; gives one its
GUID.

`koordra node make-vfs` runs once and ends, as an init container of the plugin: functions are gone after a
reboot, and nothing long-lived needs to write to /sys. It only ever makes functions where there are none: it
changes no number, and takes none away. A NIC is left alone that

    has functions already                            whoever made them
    belongs to the SR-IOV Network Operator           which notes each NIC that it configures in
                                                     /etc/sriov-operator/pci/<address> on the host
                                                     (pkg/host/store), unless its policy says
                                                     externallyManaged
    is part of a bond or a bridge                    its functions would not be on that
    is held by a claim                               it may be in a pod
    is not among those that the operator names       (--only), where any are named: beside another operator
                                                     that has not come to a new node yet
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.node_state import layout, prepared_claim
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from koordra.topology.machine import Nic

SRIOV_OPERATOR: Final = "etc/sriov-operator/pci"


@dataclass(frozen=True, slots=True)
class FunctionsOfNic:
    """`made` functions, or none, and why."""

    nic: Nic
    made: int = 0
    left_alone: str = ""


def wanted_functions(
    nics: Iterable[Nic], *, most: int, only: Collection[str], owned: Collection[str], held: Collection[str]
) -> Iterator[FunctionsOfNic]:
    """What is to be made. `only` are patterns of interfaces, or PCI addresses; none are all. `owned` are the
    addresses of another operator's NICs, `held` names of devices of claims. Pure."""
    for nic in nics:
        count = min(most, nic.sriov_total)
        names = (nic.netdev or "", nic.location.bus_id)
        if only and not any(fnmatchcase(name, pattern) for name in names for pattern in only):
            yield FunctionsOfNic(nic, 0, "--only names others")
        elif not nic.sriov_total:
            yield FunctionsOfNic(nic, 0, "it has no virtual functions")
        elif nic.sriov_active:
            yield FunctionsOfNic(nic, 0, f"it has {nic.sriov_active} already")
        elif nic.location.bus_id in owned:
            yield FunctionsOfNic(nic, 0, "the SR-IOV Network Operator configures it")
        elif nic.upper is not None:
            yield FunctionsOfNic(nic, 0, f"it is part of {nic.upper}")
        elif nic.name in held:
            yield FunctionsOfNic(nic, 0, "a claim has it")
        else:
            yield FunctionsOfNic(nic, count)


def make_functions(
    nics: Iterable[Nic], *, root: Path, state: StateFolder, most: int, only: Collection[str] = ()
) -> list[FunctionsOfNic]:
    """Make them on the machine below `root`. Raises NodeError naming the NIC; those before it are made."""
    owned, held = _operators(root), _held(state, Disk())
    found = list(wanted_functions(nics, most=most, only=only, owned=owned, held=held))
    for each in found:
        if each.made:
            path = root / "sys/bus/pci/devices" / each.nic.location.bus_id / "sriov_numvfs"
            try:
                path.write_text(f"{each.made}\n", encoding="ascii")
            except OSError as error:
                raise NodeError(
                    f"{each.nic.name}: {each.made} virtual functions cannot be made: {error.strerror or error}; is /sys "
                    "writable here, and SR-IOV on in the firmware of NIC and machine?"
                ) from error
    return found


def set_guid(sys: Path, bus_id: str, guid: str) -> None:
    """Give an InfiniBand virtual function its GUID, where the driver takes it: in sysfs of the physical
    function. Raises NodeError."""
    digits = guid.replace(":", "")
    text = ":".join(digits[at : at + 2] for at in range(0, 16, 2))
    function = sys / "bus/pci/devices" / bus_id
    physical = function / "physfn"
    links = (link for link in sorted(physical.glob("virtfn*")) if link.resolve() == function.resolve())
    found = next(links, None)
    if found is None:
        raise NodeError(f"{bus_id} is not a virtual function, so it cannot be given GUID {guid}")
    try:
        for field in ("node", "port"):
            (physical / "sriov" / found.name.removeprefix("virtfn") / field).write_text(text)
    except OSError as error:
        raise NodeError(
            f"GUID {guid} of {bus_id}: {error.strerror}; does the driver take GUIDs in sysfs?"
        ) from error


def _operators(root: Path) -> frozenset[str]:
    """The NICs that the SR-IOV Network Operator has configured. A note that cannot be read counts."""
    folder, found = root / SRIOV_OPERATOR, set()
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            note = None
        if not (isinstance(note, dict) and note.get("externallyManaged") is True):
            found.add(path.name.lower())
    return frozenset(found)


def _held(state: StateFolder, disk: Disk) -> frozenset[str]:
    """Names of the devices of prepared claims. Raises NodeError for a record that cannot be read."""
    found = set()
    for name in disk.names(state.prepared):
        if layout.claim_of_file(name) is None:
            continue
        try:
            claim = prepared_claim.decode(disk.read(state.prepared / name) or b"")
        except (OSError, ValueError) as error:
            raise NodeError(
                f"{state.prepared / name} cannot be read, so it is not known which NICs claims have: {error}"
            ) from error
        found |= {device.device for device in claim.devices}
    return frozenset(found)
