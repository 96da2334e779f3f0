"""cgroups, and the kernel's mandatory access control."""

from __future__ import annotations

from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import Outcome, not_applicable, ok, problem


def cgroup(node: NodeReadings) -> Outcome:
    """One hierarchy has the controllers. The kubelet of Kubernetes 1.35 and newer starts on cgroup v1 only if
    told to."""
    found = node.cgroup
    if found.version is None:
        return not_applicable("no cgroup hierarchy is mounted")
    if found.version == "v2":
        return ok("v2")
    to_v2 = "boot with systemd.unified_cgroup_hierarchy=1"
    if found.split:
        what = f"hybrid, with {', '.join(found.split)} on v2 and the others on v1"
        return problem(what, f"{to_v2}; runtimes limit devices on one of the two only")
    fails = node.kubelet.settings.get("failCgroupV1")
    if fails and fails.value is True:
        return problem(f"{found.version}, on which the kubelet does not start ({fails.where})", to_v2)
    return ok(f"{found.version}; Kubernetes 1.35 and newer wants v2, or the kubelet's failCgroupV1: false")


def cgroup_driver(node: NodeReadings) -> Outcome:
    """Kubelet and runtime make cgroups in the same way; else limits are set in one tree and pods run in
    another."""
    kubelet = node.kubelet.settings.get("cgroupDriver")
    runtime = node.runtime
    if kubelet is None or runtime is None:
        return not_applicable("the kubelet's configuration names no cgroupDriver")
    systemd = runtime.systemd_cgroups
    theirs = "systemd" if (systemd.value if systemd else runtime.kind == "cri-o") else "cgroupfs"
    where = systemd.where if systemd else f"the default of {runtime.kind}"
    if theirs != kubelet.value:
        what = f"the kubelet has {kubelet.value} ({kubelet.where}), the runtime {theirs} ({where})"
        return problem(what, "make both systemd: SystemdCgroup = true in the options of the runtime")
    return ok(f"{theirs}: {kubelet.where}, {where}")


def access_control(node: NodeReadings) -> Outcome:
    """SELinux lets containers open devices that they were given."""
    found = node.access_control
    if found.enforcing is None:
        if found.apparmor:
            return ok("AppArmor is on; its default profile lets containers have devices")
        return not_applicable("neither SELinux nor AppArmor is on")
    labels = node.runtime.selinux if node.runtime else None
    if not found.enforcing:
        return ok("SELinux is permissive")
    if labels is None or not labels.value:
        return ok("SELinux is enforcing, and the runtime does not confine containers by it")
    if found.denied:
        what = f"SELinux denied {', '.join(found.denied)} lately (/var/log/audit/audit.log)"
        return problem(what, "setsebool -P container_use_devices on; ausearch -m avc says to whom")
    if found.booleans:
        return ok(f"SELinux is enforcing, {', '.join(sorted(found.booleans))} on")
    what = f"SELinux is enforcing and confines containers ({labels.where}), which may not use devices"
    return problem(what, "setsebool -P container_use_devices on")
