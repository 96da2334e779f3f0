"""The kubelet's resource managers against the cpusets of koordra's hook.

A claim with `numaAffinity: true` gets processors, and the memory, beside its GPUs from the hook when its
container is created, never outside of what the kubelet chose. A static CPU manager rewrites the cpuset of
containers in the shared pool later, and gives the others processors without knowing of their GPUs; a static
memory manager has counted memory of other NUMA nodes.
"""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import Outcome, not_applicable, ok, problem

_NO_KUBELET: Final = "no kubelet is found"
_ALIGN: Final = "topologyManagerPolicy: best-effort (or stricter) with prefer-closest-numa-nodes"


def configuration(node: NodeReadings) -> Outcome:
    """The kubelet's folder is found, where plugins register, and its configuration can be read."""
    found = node.kubelet
    if found.garbled:
        return problem(
            f"not YAML: {', '.join(found.garbled)}", "mend the file: the kubelet does not start with it"
        )
    if found.root is None:
        return not_applicable(_NO_KUBELET)
    if found.root != "/var/lib/kubelet":
        return ok(f"{found.root}: name it to the plugin with --kubelet-root")
    return ok(found.root)


def cpu_manager(node: NodeReadings) -> Outcome:
    return _manager(node, "cpuManagerPolicy", "static", "cpu_manager_state", "processors")


def memory_manager(node: NodeReadings) -> Outcome:
    return _manager(node, "memoryManagerPolicy", "Static", "memory_manager_state", "memory")


def _manager(node: NodeReadings, field: str, static: str, state_file: str, what: str) -> Outcome:
    kubelet = node.kubelet
    if kubelet.root is None:
        return not_applicable(_NO_KUBELET)
    setting, kept = kubelet.settings.get(field), kubelet.policies.get(field)
    policy = str(setting.value) if setting else kept or "none"
    where = f" ({setting.where})" if setting else ""
    if setting and kept and kept.lower() != policy.lower():
        said = f"{field} is {policy}{where}, {kubelet.root}/{state_file} was written with {kept}"
        return problem(
            said, f"drain the node, stop the kubelet, remove {kubelet.root}/{state_file}, start it"
        )
    if policy != static:
        return ok(f"{policy}{where}: the hook's cpusets stay")
    if node.koordra.near_gpus and _topology(node) == "none":
        said = f"{policy}{where} chooses {what} without regard to GPUs, and claims here ask for numaAffinity"
        return problem(said, _ALIGN)
    return ok(f"{policy}{where}: the kubelet chooses {what}, numaAffinity of a claim narrows it at most")


def topology_manager(node: NodeReadings) -> Outcome:
    """It aligns what device plugins and the CPU manager give; of DRA devices it does not know."""
    if node.kubelet.root is None:
        return not_applicable(_NO_KUBELET)
    setting = node.kubelet.settings.get("topologyManagerPolicy")
    policy, where = _topology(node), f" ({setting.where})" if setting else ""
    if policy == "single-numa-node" and node.koordra.near_gpus and _cpu_policy(node) == "static":
        what = (
            f"{policy}{where} may pin a pod to another NUMA node than its GPUs': it does not know of claims"
        )
        return problem(what, "topologyManagerPolicy: best-effort, or claims without numaAffinity")
    return ok(f"{policy}{where}")


def _topology(node: NodeReadings) -> str:
    setting = node.kubelet.settings.get("topologyManagerPolicy")
    return str(setting.value) if setting else "none"


def _cpu_policy(node: NodeReadings) -> str:
    setting = node.kubelet.settings.get("cpuManagerPolicy")
    return str(setting.value) if setting else node.kubelet.policies.get("cpuManagerPolicy", "none")
