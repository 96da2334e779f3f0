"""koordra's own parts on the node, and others that give out the same devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordra.api import names
from koordra.compat.detection import offered_by_others, publishers
from koordra.kubelet_plugin.node_check.readings.cdi import CdiHook
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_NOT_INSTALLED: Final = "koordra is not installed on this node yet, or only root can see it"
_GPU_DRIVER: Final = "gpu.nvidia.com"


def device_plugins(node: NodeReadings) -> Outcome:
    """No other program gives out the same cards: neither knows what the other has given. Device plugins of
    NICs are only named: beside koordra they serve the NICs that koordra is not to give out."""
    found = node.rivals
    if node.kubelet.root is None:
        return not_applicable("no kubelet is found")
    offered = offered_by_others({"status": {"allocatable": dict(found.resources)}})
    faults = [
        Fault(
            f"{name} is given out by {publishers((name,))}",
            "take that device plugin off this node (GPU Operator: devicePlugin.enabled=false)",
        )
        for name in offered
    ]
    faults += [
        Fault(
            f"DRA driver {name} is registered", "take NVIDIA's DRA driver for GPUs off this node, or koordra"
        )
        for name in found.dra_drivers
        if name.startswith(_GPU_DRIVER)
    ]
    if names.TYPE_GPU in node.koordra.left:
        return ok(
            f"the node's GPUs are left to another stack (label {names.GPU_OWNER_LABEL}, docs/migrate/node-by-node.md)"
            + (f": {', '.join(fault.what for fault in faults)}" if faults else "")
        )
    others = [*found.device_plugins, *found.dra_drivers, *found.cdi_specs]
    return judged([f"beside koordra: {', '.join(others)}" if others else "none"], faults)


def hami_core(node: NodeReadings) -> Outcome:
    """HAMi's library, where the node has it or the plugin is to have it, can keep shares."""
    found = node.hami_core
    library = f"{found.path}/libvgpu.so"
    if found.faults is None:
        return not_applicable(f"no {library}: isolation hami-core needs HAMi's library there")
    return judged([library], (Fault(what, remedy) for what, remedy in found.faults))


def plugin(node: NodeReadings) -> Outcome:
    """The kubelet plugin has its registration socket where the kubelet looks, and answers there."""
    found = node.koordra
    if not found.installed:
        return not_applicable(_NOT_INSTALLED)
    if not found.registered:
        what = f"no socket of koordra.io in {node.kubelet.root}/plugins_registry"
        return problem(what, "look at the plugin's log; is its --kubelet-root this folder?")
    dead = [path for path, answers in found.registered if answers is False]
    if len(dead) == len(found.registered):
        return problem(f"nobody answers on {', '.join(dead)}", "look at the plugin's log; start it again")
    return ok(", ".join(path for path, answers in found.registered if answers is not False))


def cdi_hook(node: NodeReadings) -> Outcome:
    """The program that the runtime starts for each container of a claim is there, can be started, and trusts
    no library of an image."""
    if not node.cdi.hooks:
        return not_applicable("no claim here has a hook, and none is installed yet")
    return judged(
        [", ".join(one.path for one in node.cdi.hooks)],
        (fault for one in node.cdi.hooks for fault in _hook_faults(one)),
    )


def _hook_faults(found: CdiHook) -> Iterator[Fault]:
    if not found.exists:
        what = f"{found.path}, which a claim's CDI file names, is not there: its containers do not start"
        yield Fault(what, "restart the kubelet plugin, which installs it anew")
        return
    if not found.executable:
        yield Fault(f"{found.path} may not be executed by everybody", f"chmod 0755 {found.path}")
    if not found.static:
        yield Fault(f"{found.path} is no static program", "remove it and restart the kubelet plugin")
    if found.noexec:
        yield Fault(f"{found.path} is on a file system that is mounted noexec", "give the plugin --hook-dir")
    if found.barred:
        what = f"{found.barred} keeps pods with hostUsers: false from {found.path}"
        yield Fault(what, f"chmod o+x {found.barred}, or give the plugin --hook-dir")


def hook(node: NodeReadings) -> Outcome:
    """The NRI hook is registered with the runtime: it holds its lock."""
    found = node.koordra
    if not found.installed:
        return not_applicable(_NOT_INSTALLED)
    if found.hook_registered is None:
        return not_applicable("the locks of this machine cannot be seen")
    if not found.hook_registered:
        what = "no hook holds the node's lock: containers without a claim can open devices"
        return problem(what, "run koordra nri (deploy/kustomize/nri), and look at its log")
    return ok("registered")
