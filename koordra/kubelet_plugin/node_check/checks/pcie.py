"""PCIe: links, access control of switches, IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.readings.pcie import Link
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_SEAT = "reseat the card, check riser and slot: the link trained below what the card can"
_BIOS = "switch ACS off in the firmware, or at boot: setpci -s PORT ECAP_ACS+0x6.w=0000"


def links(node: NodeReadings) -> Outcome:
    """GPUs and NICs have all their lanes, NICs also their speed. The speed of a GPU is not looked at: an idle
    one lowers it to save power."""
    known = [link for link in node.pcie.links if link.width and link.most_width]
    if not known:
        return not_applicable("no GPU or RDMA NIC shows its PCIe link")
    return judged([f"{len(known)} links looked at"], (fault for link in known for fault in _faults(link)))


def _faults(link: Link) -> Iterator[Fault]:
    kind = "GPU" if link.is_gpu else "NIC"
    if (link.width or 0) < (link.most_width or 0):
        yield Fault(f"{kind} {link.bus_id} has {link.width} of {link.most_width} lanes", _SEAT)
    if not link.is_gpu and link.speed and link.most_speed and link.speed < link.most_speed:
        yield Fault(f"NIC {link.bus_id} runs at {link.speed:g} of {link.most_speed:g} GT/s", _SEAT)


def acs(node: NodeReadings) -> Outcome:
    """Transfers between a GPU and a NIC below one switch do not go up to the root complex."""
    found = node.pcie
    if not found.switch_ports:
        return not_applicable("no PCIe switch with two or more GPUs and NICs")
    if found.redirecting:
        what = f"{len(found.redirecting)} switch ports redirect transfers: {', '.join(found.redirecting)}"
        return problem(what, _BIOS)
    if len(found.unreadable) == len(found.switch_ports):
        return not_applicable("the switches' configuration space cannot be read; run this as root")
    return ok(f"{len(found.switch_ports)} switch ports redirect nothing")


def iommu(node: NodeReadings) -> Outcome:
    """The IOMMU is off, or passes GPUs and NICs through: with translation peer transfers are slow or fail."""
    found = node.pcie
    if not found.links:
        return not_applicable("no GPU or RDMA NIC")
    words = f" ({' '.join(found.iommu_arguments)})" if found.iommu_arguments else ""
    if not found.iommu:
        return ok(f"off{words}")
    translating = [kind for kind in found.iommu if kind.startswith("DMA")]
    if translating and len(found.links) > 1:
        what = f"GPUs or NICs are in IOMMU groups of type {', '.join(translating)}{words}"
        return problem(
            what, "boot with iommu=pt, or switch the IOMMU off in the firmware (not in a virtual machine)"
        )
    return ok(f"groups of type {', '.join(found.iommu)}{words}")
