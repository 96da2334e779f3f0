"""What NCCL and UCX must know of a NIC's network, in their configuration files. Pure.

    <state>/claims/<uid>/nccl.conf    /run/koordra.io/fabric/<uid>/nccl.conf    joined into /etc/nccl.conf
    <state>/claims/<uid>/ucx.conf     /run/koordra.io/fabric/<uid>/ucx.conf     UCX_CONFIG_DIR

The class says it (RdmaConfig.fabric), the file has a line for each:

    of the fabric           NCCL                   UCX
    trafficClass            NCCL_IB_TC             UCX_IB_TRAFFIC_CLASS
    serviceLevel            NCCL_IB_SL             UCX_IB_SL
    addressFamily           NCCL_IB_ADDR_FAMILY
    addressRange            NCCL_IB_ADDR_RANGE     UCX_IB_ROCE_SUBNETS
    pkey                    NCCL_IB_PKEY: its      UCX_IB_PKEY: the key
                            place in the table
    an interface in the pod NCCL_SOCKET_IFNAME

**Files and not variables**, since both libraries let a variable win over a file: what a user sets stays. Both
read the image's own files as well. Of the same name the network's operator is believed before the image, and
a user before both:

    NCCL    the first line of a name counts: of the file that NCCL_CONF_FILE names (2.23 and later) or of
            ~/.nccl.conf, then of /etc/nccl.conf (src/misc/param.cc). NCCL_CONF_FILE would take the place of
            the file in a home folder that nobody knows before the program runs, and is the user's; so the
            CDI hook puts the lines before those of the image in /etc/nccl.conf (native/cdi-hook/fabric.c)
    UCX     the last line counts: of /etc/ucx, of the folder beside its library, of the home folder, then of
            the one that UCX_CONFIG_DIR names (src/ucs/config/parser.c). That variable is the NRI hook's to
            set (node_state/prepared_claim.py), where neither pod nor image sets it

**Never a GID index.** NCCL_IB_GID_INDEX is one number for all NICs of a program, and the same address has
another index on each NIC and in each pod; left alone, NCCL and UCX choose the RoCE v2 address by family and
range.

For its own connections NCCL prefers an interface whose name begins with `ib`, and else takes the first that
the kernel lists (src/misc/socket.cc, src/os/linux.cc), which a NIC that moved is where its number is lower
than that of the pod's own. Neither is that by which pods find each other: rails are often not routed to each
other. Where an interface of a NIC goes into the pod, NCCL is told to take eth0.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from koordra.api.opaque.parameters import RdmaConfig
from koordra.api.opaque.rdma_fabric import AddressFamily
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ContainerEdits, DeviceRecord, Mount
from koordra.node_state.claim_network import NetworkPlan
from koordra.node_state.layout import StateFolder
from koordra.node_state.prepared_claim import UCX_FOLDER
from koordra.node_state.strict_json import Pairs
from koordra.topology.machine import RdmaPort

NCCL: Final = "nccl.conf"
UCX: Final = "ucx.conf"
IN_CONTAINER: Final = "/run/koordra.io/fabric"

_FAMILIES: Final = {AddressFamily.IPV4: "AF_INET", AddressFamily.IPV6: "AF_INET6"}


def fabric_settings(
    device: DeviceRecord, config: RdmaConfig, *, plan: NetworkPlan | None, port: RdmaPort | None
) -> Pairs:
    """The lines for one NIC. Raises PrepareError for a partition that the NIC is not in, or where none of its
    addresses is one that the libraries are told to take."""
    found: dict[str, str] = {}
    fabric = config.fabric
    family = fabric.family if fabric else None
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
    if family is None and plan is not None and plan.addresses:
        versions = {ipaddress.ip_interface(address).version for address in plan.addresses}
        family = AddressFamily.IPV6 if versions == {AddressFamily.IPV6.version} else None
    if family is not None:
        found["NCCL_IB_ADDR_FAMILY"] = _FAMILIES[family]
        _refuse_others(device, plan, family=family, of=fabric.address_range if fabric else None)
    pkey = (fabric.pkey if fabric else None) or (config.network.pkey if config.network else None)
    if pkey is not None:
        found |= _partition(device, pkey, plan=plan, port=port)
    if plan is not None and plan.has_interface:
        found["NCCL_SOCKET_IFNAME"] = "=eth0"
    return tuple(found.items())


def _refuse_others(
    device: DeviceRecord, plan: NetworkPlan | None, *, family: AddressFamily, of: str | None
) -> None:
    """Both libraries would take the first entry of the table instead, which is link-local."""
    there = [ipaddress.ip_interface(text).ip for text in plan.addresses] if plan else []
    network = ipaddress.ip_network(of) if of else None
    if there and not any(
        each.version == family.version and (network is None or each in network) for each in there
    ):
        raise PrepareError(
            f"FabricMismatch: {device.device} has {', '.join(map(str, there))} in the pod, and its class's fabric says "
            f"{of or family}; make addressRange or addressFamily fit the pool, or the other way"
        )


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
    """The mounts of the claim's files and the variable that names UCX's; nothing if there is no line. Raises
    PrepareError where two NICs of the claim contradict each other."""
    edits = ContainerEdits()
    folder = f"{IN_CONTAINER}/{record.ref.uid}"
    for name in (NCCL, UCX):
        if _lines(record, name):
            host = str(files.claim_folder(record.ref.uid) / name)
            edits += ContainerEdits(
                env=((UCX_FOLDER, folder),) if name == UCX else (), mounts=(Mount(host, f"{folder}/{name}"),)
            )
    return edits


def rules_nccl(record: ClaimRecord) -> bool:
    """Whether a class says something that NCCL has to know, besides what is a help to it."""
    return any(variable.startswith("NCCL_IB_") for device in record.devices for variable, _ in device.fabric)


def for_nccl(edits: Iterable[ContainerEdits]) -> bool:
    """Whether there is something to be joined with the image's file for NCCL."""
    paths = (mount.container_path for each in edits for mount in each.mounts)
    return any(path.endswith(f"/{NCCL}") for path in paths)


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
