"""dranet. Source: pkg/apis of dranet (main of November 2026)."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

_ATTRIBUTES: Final = """
attribute | y | ifName | name of the interface | `netdev`
attribute | y | rdmaDevice | the RDMA device | `ibDevice`
attribute | y | numaNode | NUMA node | the same
attribute | y | rdma | whether it does RDMA | true: every NIC of koordra's does
attribute | y | virtual | whether it has no hardware | false
attribute | y | isSriovVf | whether it is a virtual function | `type == "vf"`
attribute | y | pciAddress | PCI address | `resource.kubernetes.io/pciBusID`
match | y | dra.net/numaNode | of one NUMA node | `koordra.io/numaNode`
match | y | resource.kubernetes.io/pcieRoot | beside each other, GPUs too | stays, koordra publishes it too
"""
_UNPUBLISHED: Final = {
    "mac": "address of the link",
    "pciVendor": "vendor",
    "pciDevice": "model",
    "pciSubsystem": "model of the board",
    "mtu": "MTU",
    "encapsulation": "ether, infiniband ...",
    "alias": "alias of the interface",
    "state": "up or down",
    "type": "kind of the interface",
    "ipv4": "address",
    "ipv6": "address",
    "tcFilterNames": "eBPF programs",
    "tcxProgramNames": "eBPF programs",
    "ebpf": "whether it has eBPF programs",
    "sriov": "whether it can have virtual functions",
    "sriovVfs": "how many virtual functions",
}
_PARAMETERS: Final = """
parameter | y | interface.name | its name in the pod | `RdmaConfig.network.interface`
parameter | y | interface.mtu | its MTU in the pod | `RdmaConfig.network.mtu`
"""
_OF_CLASSES: Final = {
    "profile": "settings by name, of a cloud",
    "interface.addresses": "addresses in the pod",
    "interface.dhcp": "addresses by DHCP",
    "interface.hardwareAddr": "address of the link",
    "interface.gsoMaxSize": "segmentation",
    "interface.groMaxSize": "segmentation",
    "interface.gsoIPv4MaxSize": "segmentation",
    "interface.groIPv4MaxSize": "segmentation",
    "interface.disableEbpfPrograms": "eBPF programs are taken off",
    "interface.forwarding": "whether it forwards",
    "interface.arpIgnore": "how it answers ARP",
    "interface.arpAnnounce": "how it announces itself",
    "interface.vrf": "its routing domain",
    "routes": "routes",
    "rules": "routing rules",
    "neighbors": "fixed neighbours",
    "ethtool": "features and private flags",
}

KEYS: Final[tuple[Key, ...]] = rows(
    "dranet",
    _ATTRIBUTES
    + "\n".join(
        f"attribute | refused | {name} | {meaning} | koordra.io publishes no {name} as dra.net does; "
        "select by ifName, rdmaDevice, numaNode"
        for name, meaning in _UNPUBLISHED.items()
    )
    + _PARAMETERS
    + "\n".join(
        f"parameter | refused | {name} | {meaning} | cannot be said in a claim of koordra's; let a class say it "
        "(RdmaConfig.network)"
        for name, meaning in _OF_CLASSES.items()
    ),
)
