"""RDMA: modules, the mode of network namespaces, ports, and GPUDirect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from koordra.kubelet_plugin.node_check.checks.driver import has_gpus
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.readings.rdma import Port
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_NONE: Final = "no RDMA device"
_DMA_BUF: Final = (5, 12)
"""The kernel from which RDMA registers memory of a dma-buf."""
_RELEASE: Final = re.compile(r"([0-9]+)\.([0-9]+)", re.ASCII)


def rdma(node: NodeReadings) -> Outcome:
    """NICs have their RDMA devices, and programs can reach them."""
    found = node.rdma
    faults = [
        Fault(
            f"NIC {bus_id} has no RDMA device", "modprobe mlx5_ib; or enable RoCE in its firmware (mlxconfig)"
        )
        for bus_id in found.capable
    ]
    if not found.functions and not faults:
        software = f"; {', '.join(found.devices)} are software" if found.devices else ""
        return not_applicable(f"{_NONE}{software}")
    if found.functions:
        faults += [
            Fault(f"{name} has no /dev/infiniband/uverbs node", "modprobe ib_uverbs")
            for name in found.without_verbs
        ]
        if not found.has_connection_manager:
            faults.append(Fault("/dev/infiniband/rdma_cm does not exist", "modprobe rdma_ucm, at every boot"))
    modules = ", ".join(sorted(found.modules)) or "built into the kernel"
    return judged([f"{', '.join(found.functions) or 'no device'}; modules {modules}"], faults)


def mode(node: NodeReadings) -> Outcome:
    """Shared: every pod sees all RDMA devices, the device node alone decides. Exclusive: a device is moved
    into its pod, which the plugin does with --pod-network."""
    if not node.rdma.functions:
        return not_applicable(_NONE)
    if node.rdma.exclusive is None:
        return not_applicable("the kernel does not say its mode (rdma system)")
    if not node.rdma.exclusive:
        return ok("shared")
    if node.koordra.pod_network is False:
        what = "exclusive, and the plugin does not move NICs into pods: pods cannot open them"
        return problem(what, "give plugin and hook --pod-network, or: rdma system set netns shared")
    moved = (
        "which the plugin's --pod-network serves"
        if node.koordra.pod_network
        else "for which the plugin needs --pod-network"
    )
    return ok(f"exclusive, {moved}")


def ports(node: NodeReadings) -> Outcome:
    """Every device has a port that is ACTIVE, and a RoCE port an address: its RoCE v2 GID is made of it."""
    if not node.rdma.ports:
        return not_applicable(_NONE)
    return judged(map(_described, node.rdma.ports), _port_faults(node.rdma.ports))


def _port_faults(ports: tuple[Port, ...]) -> Iterator[Fault]:
    working = {port.device for port in ports if port.state == "ACTIVE"}
    for port in ports:
        name = f"{port.device} port {port.number}"
        if port.state != "ACTIVE":
            if port.device not in working:
                remedy = (
                    "check cable, subnet manager (INIT waits for it) and link"
                    if port.link_layer == "InfiniBand"
                    else f"check cable and switch; ip link set {port.netdev or 'the interface'} up"
                )
                yield Fault(f"{name} is {port.state or 'in an unknown state'}", remedy)
        elif port.link_layer == "Ethernet" and port.netdev and not port.v2:
            yield Fault(
                f"{name} has no RoCE v2 GID",
                "cma_roce_mode, or roce_type in the NIC's settings, has to be v2",
            )
        elif port.link_layer == "Ethernet" and port.netdev and not port.routable_v2:
            remedy = f"give {port.netdev} an address; NICs that move into pods get theirs there"
            yield Fault(f"{name} has RoCE v2 GIDs of link-local addresses only", remedy)


def _described(port: Port) -> str:
    mtu = f", MTU {port.mtu}" if port.mtu and port.link_layer == "Ethernet" else ""
    return f"{port.device} {port.link_layer or 'unknown'} {port.state} {port.rate.partition(' (')[0]}{mtu}"


def gpudirect(node: NodeReadings) -> Outcome:
    """NICs can reach the cards' memory: by dma-buf, or by nvidia_peermem, loaded after ib_core."""
    if not node.rdma.functions or not has_gpus(node):
        return not_applicable("no GPU beside an RDMA device")
    release = _RELEASE.match(node.kernel)
    kernel = (int(release[1]), int(release[2])) if release else None
    if node.driver.open_modules and kernel is not None and kernel >= _DMA_BUF:
        return ok(f"dma-buf: kernel {node.kernel}, open modules")
    if "nvidia_peermem" in node.rdma.modules:
        return ok("nvidia_peermem is loaded")
    what = f"kernel {node.kernel or 'unknown'}, {'open' if node.driver.open_modules else 'closed'} modules, no nvidia_peermem"
    return problem(
        what, "modprobe nvidia-peermem at every boot, or install NVIDIA's open modules (kernel 5.12 or newer)"
    )
