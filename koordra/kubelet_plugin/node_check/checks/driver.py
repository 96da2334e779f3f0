"""The GPU driver: it is there, of one version, answers, and runs on a platform that koordra serves."""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import Outcome, not_applicable, ok, problem

_INSTALL = "install NVIDIA's driver on the host, or let the GPU Operator's driver container do it"
OLDEST: Final = 470
"""The oldest branch with long support whose libcuda has cuGetProcAddress (CUDA 11.3), by which CUDA's runtime
finds what the limiter stands in front of."""
NO_GPU = "no NVIDIA GPU on the PCI bus and no driver"


def has_gpus(node: NodeReadings) -> bool:
    return bool(node.driver.cards or node.driver.module_version or node.driver.loaded_version)


def driver(node: NodeReadings) -> Outcome:
    """Module, loaded driver and libraries are of one version. Where they differ, NVML answers "Driver/library
    version mismatch" and CUDA does not start: a driver was upgraded under a loaded module."""
    found = node.driver
    loaded = {version for version in (found.loaded_version, found.module_version) if version}
    home = found.home.driver
    if not loaded:
        if not found.cards:
            return not_applicable(f"no NVIDIA GPU on the PCI bus; {found.home}" if home else NO_GPU)
        what = f"{_gpus(len(found.cards))}, and module nvidia is not loaded"
        if found.nouveau:
            return problem(f"{what}: nouveau is", f"blacklist nouveau, then {_INSTALL}")
        return problem(what, "modprobe nvidia; dmesg says why not" if home else _INSTALL)
    if len(loaded) > 1:
        what = f"the loaded driver is {found.loaded_version}, module nvidia is {found.module_version}"
        return problem(what, "reboot the node")
    version = loaded.pop()
    if (branch := version.partition(".")[0]).isdecimal() and int(branch) < OLDEST:
        what = f"driver {version} is older than {OLDEST} (CUDA 11.4), and koordra is made for none so old"
        return problem(what, "upgrade the driver; docs/support.md says to what")
    if home is None:
        what = f"module {version} is loaded, {found.home}"
        return problem(what, f"{_INSTALL}; a driver elsewhere is named with the plugin's --driver-root")
    if not found.home.matches:
        what = f"module {version} is loaded, the libraries are {found.home.version}: {found.home}"
        return problem(what, "finish the upgrade: drain the node, then reboot it or reload the modules")
    if version not in found.cuda_versions:
        what = f"no libcuda of {version} below {home.on_host}: {', '.join(sorted(found.cuda_versions)) or 'none'}"
        return problem(what, "install the driver's compute part (libnvidia-compute, nvidia-driver-cuda-libs)")
    kind = "open modules" if found.open_modules else "closed modules"
    return ok(f"{kind}; {found.home}")


def platform(node: NodeReadings) -> Outcome:
    """WSL and Tegra have GPUs without the device nodes and NVML calls that koordra needs."""
    refused = node.driver.refused
    if refused is not None:
        return problem(f"{refused.problem} ({refused.field})", refused.remedy)
    return ok("neither WSL nor Tegra") if has_gpus(node) else not_applicable(NO_GPU)


def nvml(node: NodeReadings) -> Outcome:
    """NVML starts, and shows every card that the driver has."""
    if not has_gpus(node):
        return not_applicable(NO_GPU)
    if node.nvml is None:
        return not_applicable("NVML of a captured machine cannot be asked")
    if node.nvml.error:
        return problem(
            f"NVML cannot be used: {node.nvml.error}",
            "see check `driver`; try nvidia-smi on the host; dmesg shows Xids of a card that does not start",
        )
    shown, known = {gpu.bus_id for gpu in node.nvml.gpus}, set(node.gpus.minors)
    missing = sorted(known - shown)
    if missing:
        what = f"the driver has {_gpus(len(known))}, NVML shows {len(shown)}: not {', '.join(missing)}"
        return problem(what, "dmesg shows the Xid of the missing card; reset it, or reboot the node")
    unbound = sorted(set(node.driver.cards) - shown)
    if unbound:
        what = f"{_gpus(len(unbound))} on the PCI bus without the driver: {', '.join(unbound)}"
        return problem(what, "bind them to driver nvidia, or take them out of the machine's offer (vfio-pci)")
    lazy = sum(gpu.persistence is False for gpu in node.nvml.gpus)
    note = f"; persistence is off for {lazy}, whose first program starts slowly" if lazy else ""
    return ok(f"{_gpus(len(shown))}, driver {node.nvml.driver_version or 'unknown'}{note}")


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
