"""What NCCL and UCX must know of a NIC's network, in their configuration files. Pure.

    <state>/claims/<uid>/nccl.conf    NCCL_CONF_FILE     /run/koordra.io/fabric/<uid>/nccl.conf
    <state>/claims/<uid>/ucx.conf     UCX_CONFIG_DIR     /run/koordra.io/fabric/<uid>

The class says it (RdmaConfig.fabric), the file has a line for each:

    of the fabric           NCCL                   UCX
    trafficClass            NCCL_IB_TC             UCX_IB_TRAFFIC_CLASS
    serviceLevel            NCCL_IB_SL             UCX_IB_SL
    addressFamily           NCCL_IB_ADDR_FAMILY
    addressRange            NCCL_IB_ADDR_RANGE     UCX_IB_ROCE_SUBNETS
    pkey                    NCCL_IB_PKEY: its      UCX_IB_PKEY: the key
                            place in the table
    an IPoIB interface      NCCL_SOCKET_IFNAME

**Files and not variables**, since both libraries let a variable win over a file: what a user sets stays. Both
read the image's own files as well, NCCL /etc/nccl.conf after the one that NCCL_CONF_FILE names, where the
first line counts (NCCL, src/misc/param.cc), UCX /etc/ucx/ucx.conf and the one beside its library before the
one in UCX_CONFIG_DIR, where the last line counts (UCX, src/ucs/config/parser.c). So the image's lines and
these are joined, and of the same name the network's operator is believed. The two variables are the hook's
to set (node_state/prepared_claim.py), where neither pod nor image sets them.

**Never a GID index.** NCCL_IB_GID_INDEX is one number for all NICs of a program, and the same address has
another index on each NIC and in each pod; left alone, NCCL and UCX choose the RoCE v2 address by family and
range.

NCCL prefers an interface whose name begins with `ib` for its own connections (src/misc/socket.cc), which is
not that by which pods find each other. Where such a one goes into the pod, NCCL is told to take eth0.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from koordra.api.opaque.parameters import RdmaConfig
from koordra.api.opaque.rdma_fabric import AddressFamily
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ContainerEdits, DeviceRecord, Mount
from koordra.node_state.claim_network import NetworkPlan
from koordra.node_state.layout import StateFolder
from koordra.node_state.prepared_claim import NCCL_FILE, UCX_FOLDER
from koordra.node_state.strict_json import Pairs
from koordra.topology.machine import RdmaPort

NCCL: Final = "nccl.conf"
UCX: Final = "ucx.conf"
IN_CONTAINER: Final = "/run/koordra.io/fabric"

_FAMILIES: Final = {AddressFamily.IPV4: "AF_INET", AddressFamily.IPV6: "AF_INET6"}


def fabric_settings(
    device: DeviceRecord, config: RdmaConfig, *, plan: NetworkPlan | None, port: RdmaPort | None
) -> Pairs:
    """The lines for one NIC. Raises PrepareError for a partition that the NIC is not in."""
    found: dict[str, str] = {}
    fabric = config.fabric
    family = fabric.address_family if fabric else None
    if fabric is not None and fabric.traffic_class is not None:
        found |= {
            "NCCL_IB_TC": str(fabric.traffic_class),
            "UCX_IB_TRAFFIC_CLASS": str(fabric.traffic_class),
        }
    if fabric is not None and fabric.service_level is not None:
        found |= {"NCCL_IB_SL": str(fabric.service_level), "UCX_IB_SL": str(fabric.service_level)}
    if fabric is not None and fabric.address_range is not None:
        found |= {
            "NCCL_IB_ADDR_RANGE": fabric.address_range,
            "UCX_IB_ROCE_SUBNETS": fabric.address_range,
        }
        version = ipaddress.ip_network(fabric.address_range).version
        family = next(each for each in AddressFamily if each.version == version)
    if family is None and plan is not None and plan.addresses:
        versions = {ipaddress.ip_interface(address).version for address in plan.addresses}
        family = AddressFamily.IPV6 if versions == {AddressFamily.IPV6.version} else None
    if family is not None:
        found["NCCL_IB_ADDR_FAMILY"] = _FAMILIES[family]
    pkey = (fabric.pkey if fabric else None) or (config.network.pkey if config.network else None)
    if pkey is not None:
        found |= _partition(device, pkey, plan=plan, port=port)
    if plan is not None and plan.interface.startswith("ib"):
        found["NCCL_SOCKET_IFNAME"] = "=eth0"
    return tuple(found.items())


def _partition(
    device: DeviceRecord, pkey: int, *, plan: NetworkPlan | None, port: RdmaPort | None
) -> dict[str, str]:
    """NCCL wants the place in the port's table, UCX the key without its highest bit, which says that the
    member is a full one. A function that gets its GUID with the pod has its table only then."""
    table = [each & _KEY for each in port.pkeys] if port else []
    found = {"UCX_IB_PKEY": f"{pkey & _KEY:#x}"}
    if pkey & _KEY in table:
        return {"NCCL_IB_PKEY": str(table.index(pkey & _KEY)), **found}
    if plan is not None and plan.guid is not None:
        return found
    raise PrepareError(
        f"PartitionMismatch: {device.device} is not in partition {pkey:#06x}, but in "
        f"{', '.join(f'{each:#06x}' for each in port.pkeys) if port and port.pkeys else 'none'}; have the subnet manager "
        "add it, or use another class"
    )


_KEY: Final = 0x7FFF


def fabric_edits(record: ClaimRecord, *, files: StateFolder) -> ContainerEdits:
    """The mounts of the claim's files and the variables that name them; nothing if there is no line. Raises
    PrepareError where two NICs of the claim contradict each other."""
    edits = ContainerEdits()
    folder = f"{IN_CONTAINER}/{record.ref.uid}"
    for name, variable in ((NCCL, (NCCL_FILE, f"{folder}/{NCCL}")), (UCX, (UCX_FOLDER, folder))):
        if _lines(record, name):
            host = str(files.claim_folder(record.ref.uid) / name)
            edits += ContainerEdits(env=(variable,), mounts=(Mount(host, f"{folder}/{name}"),))
    return edits


def fabric_file(record: ClaimRecord, name: str) -> bytes:
    """The content of nccl.conf or ucx.conf."""
    lines = (f"{variable}={value}\n" for variable, value in _lines(record, name).items())
    return "".join(
        ["# Of the network that this claim's NICs are on, by their class (koordra).\n", *lines]
    ).encode()


def _lines(record: ClaimRecord, name: str) -> dict[str, str]:
    """The settings of all NICs: both libraries know one value for all."""
    found: dict[str, tuple[str, str]] = {}
    for device in record.devices:
        for variable, value in device.fabric:
            known, other = found.setdefault(variable, (value, device.device))
            if known != value:
                raise PrepareError(
                    f"{record.ref}: {variable} would be {known} for {other} and {value} for {device.device}, and NCCL and "
                    "UCX know one value for all NICs of a program; take NICs of one network, or a claim of each"
                )
    prefix = "NCCL_" if name == NCCL else "UCX_"
    return {variable: value for variable, (value, _) in found.items() if variable.startswith(prefix)}
