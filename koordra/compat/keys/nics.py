"""Device plugins of NICs. Source: pkg/types of k8s-rdma-shared-dev-plugin and sriov-network-device-plugin;
the network operator's older examples for mlnxnics."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = (
    *rows(
        "rdma",
        """
resource | warned | rdma/* | NICs that pods share (hca_shared_devices_a, rdma_shared_device_a ...) | `convert`: request `rdma`, 1% of a NIC each, different ones, `JointAllocation` with the GPUs, Preferred; in a cluster where `nics` in koordra's settings has the name; say the interfaces there
resource | warned | nvidia.com/mlnxnics | NICs that pods share, of NVIDIA's network operator | a NIC share as rdma/*; say the interfaces in the settings: nics
setting | warned | resourceName | the name behind the prefix | is said to koordra as `nics`; add {<prefix>/<name>: {kind: Share}} to the settings
setting | warned | resourcePrefix | what stands before the name, rdma where it is absent | is said to koordra as `nics`; write the whole name there
setting | warned | rdmaHcaMax | pods that share a NIC | is said to koordra as `share` in percent; 100 divided by it, at least 1
setting | warned | devices | interfaces that the name means | is said to koordra as `nics`; write `interfaces` there
setting | warned | selectors | vendors, drivers, interfaces and link types that the name means | is said to koordra as `nics`; write `interfaces` there
""",
    ),
    *rows(
        "sriov",
        """
setting | warned | resourceName | the name behind the prefix | is said to koordra as `nics`; add {<prefix>/<name>: {kind: VF}} to the settings
setting | warned | resourcePrefix | what stands before the name, intel.com where it is absent | is said to koordra as `nics`; write the whole name there
setting | warned | deviceType | netDevice, accelerator or auxNetDevice | koordra gives out virtual functions of NICs; leave the others to the plugin
setting | warned | excludeTopology | the kubelet is told no NUMA node | is not needed: GPUs and NICs are chosen together; take it out
setting | warned | selectors | vendors, drivers, physical functions that the name means | is said to koordra as `nics`; write `interfaces` there
setting | warned | additionalInfo | what else containers are told | is not told; read the device metadata (docs/container-contract.md)
annotation | y | k8s.v1.cni.cncf.io/networks | the pod's networks (Multus) | stays: Multus and koordra's plugin read it (docs/rdma.md)
annotation | y | v1.multus-cni.io/default-network | the pod's first network | stays: Multus reads it
""",
    ),
)
