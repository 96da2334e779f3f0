"""The container runtime: its version, CDI, NRI, and who starts containers.

Defaults by version: containerd has CDI since 1.7, where it is off, as NRI is; both are on since 2.0. CRI-O
has CDI always on, NRI since 1.26, on since 1.30. Sources: containerd internal/cri/config/config_unix.go,
internal/nri/config.go and pkg/cri, pkg/nri of 1.7; CRI-O crio.conf.d(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.kubelet_plugin.node_check.readings.container_runtime.runtime import Runtime
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.readings.setting import Setting
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_OLDEST: Final = {"containerd": (1, 7), "cri-o": (1, 28)}
_CDI_ON_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 23)}
_NRI_ON_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 30)}
_NO_RUNTIME: Final = "neither containerd nor CRI-O is found"
_CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")


def runtime(node: NodeReadings) -> Outcome:
    """containerd or CRI-O, new enough for CDI, with a configuration that can be read."""
    found = node.runtime
    if found is None:
        return not_applicable(_NO_RUNTIME)
    files = ", ".join(found.files) or "no configuration file"
    if found.garbled:
        return problem(
            f"{found.kind}: {'; '.join(found.garbled)}", "mend the file: the runtime does not start with it"
        )
    oldest = _OLDEST[found.kind]
    if found.release is None:
        return not_applicable(f"{found.kind} ({files}), whose version cannot be asked")
    if found.release < oldest:
        what = f"{found.kind} {found.version} has no CDI for DRA"
        return problem(what, f"upgrade to {found.kind} {oldest[0]}.{oldest[1]} or newer")
    return ok(f"{found.kind} {found.version}, {files}")


def cdi(node: NodeReadings) -> Outcome:
    """CDI is on, and the runtime reads the folder that koordra writes to."""
    found = node.runtime
    if found is None:
        return not_applicable(_NO_RUNTIME)
    table = (
        "[plugins.'io.containerd.cri.v1.runtime']" if _new(found) else '[plugins."io.containerd.grpc.v1.cri"]'
    )
    remedy = f"enable_cdi = true in {table}, then restart {found.kind}"
    on, said = _switch(found, found.cdi, _CDI_ON_SINCE)
    if on is None:
        return not_applicable(said)
    if not on:
        return problem(f"off: {said}", remedy)
    running = _reported(found.running, "enableCDI")
    if running is False:
        what = f"on: {said}, and the running {found.kind} reports that it is off"
        return problem(what, f"restart {found.kind}: it runs with an older configuration")
    folders = found.cdi_folders.value if found.cdi_folders else list(_CDI_FOLDERS)
    where = found.cdi_folders.where if found.cdi_folders else "the default"
    ours = node.cdi.folder
    named = [str(one) for one in folders] if isinstance(folders, list) else []
    if _real(ours) not in map(_real, named):
        what = f"on, but the runtime reads {', '.join(named) or 'no folder'} ({where}), not {ours}"
        return problem(
            what, f"add '{ours}' to cdi_spec_dirs, or give the plugin --cdi-dir; then restart {found.kind}"
        )
    return ok(f"on: {said}; folders {', '.join(named)} ({where})")


def cdi_folder(node: NodeReadings) -> Outcome:
    """The folder can be written; where it is missing the plugin makes it."""
    found = node.cdi
    if found.read_only:
        what = f"{found.folder} is on a file system that is mounted read-only"
        return problem(what, "mount a tmpfs there, or give the plugin --cdi-dir and the runtime that folder")
    if not found.exists:
        return not_applicable(f"{found.folder} does not exist yet; the plugin makes it")
    if found.read_only is None:
        return not_applicable(f"{found.folder}; the mounts of the host cannot be read")
    return ok(f"{found.folder} can be written")


def nri(node: NodeReadings) -> Outcome:
    """NRI is on and takes connections: without it nothing keeps containers that have no claim from the
    devices."""
    found = node.runtime
    if found is None:
        return not_applicable(_NO_RUNTIME)
    if found.kind == "containerd":
        remedy = f"disable = false in [plugins.'io.containerd.nri.v1.nri'], then restart {found.kind}"
    else:
        remedy = f"enable_nri = true in [crio.nri], then restart {found.kind}"
    on, said = _switch(found, found.nri, _NRI_ON_SINCE)
    if on is None:
        return not_applicable(said)
    if not on:
        return problem(f"off: {said}", remedy)
    faults = []
    if found.nri_connections and not found.nri_connections.value:
        what = f"on, but closed to plugins that connect ({found.nri_connections.where})"
        faults.append(Fault(what, "take the line away that disables connections"))
    elif not found.nri_socket_exists:
        faults.append(Fault(f"on, but there is no socket {found.nri_socket}", f"restart {found.kind}"))
    timeout = (
        f"; requests may take {found.nri_timeout.value} ({found.nri_timeout.where})"
        if found.nri_timeout
        else ""
    )
    return judged([f"on: {said}; {found.nri_socket}{timeout}"], faults)


def default_runtime(node: NodeReadings) -> Outcome:
    """The default runtime is a plain one. NVIDIA's gives every container whose image says
    NVIDIA_VISIBLE_DEVICES=all every card, whatever was allocated."""
    found = node.runtime
    if found is None:
        return not_applicable(_NO_RUNTIME)
    default = found.default_runtime
    if default is None:
        return ok("the runtime's own default")
    if "nvidia" in str(default.value):
        what = f"{default.value} is the default runtime ({default.where})"
        remedy = (
            "make runc the default (GPU Operator: CONTAINERD_SET_AS_DEFAULT=false, cdi.default off); pods "
            "with claims need no runtime class"
        )
        return problem(what, remedy)
    return ok(f"{default.value} ({default.where})")


def oci_runtime(node: NodeReadings) -> Outcome:
    """The program that starts containers. runc before 1.3 gives a hook without an environment that of the
    container (CVE-2025-23266), so koordra's hooks always have one of their own; before 1.1 it cannot run
    createContainer hooks of CDI on cgroup v2 reliably."""
    found = node.runtime
    if found is None or found.oci_runtime is None:
        return not_applicable("no program that starts containers is found")
    if found.oci_version is None:
        return not_applicable(f"{found.oci_runtime}, whose version cannot be asked")
    parts = found.oci_version.split(".")
    if "runc" in found.oci_runtime and (int(parts[0]), int(parts[1])) < (1, 1):
        return problem(
            f"{found.oci_runtime} is {found.oci_version}", "upgrade runc to 1.1 or newer; 1.3 is best"
        )
    return ok(f"{found.oci_runtime} {found.oci_version}")


def memlock(node: NodeReadings) -> Outcome:
    """RDMA registers memory by locking it. A container inherits the runtime's limit; with koordra's hook a
    holder of a NIC has none."""
    found = node.runtime
    if not node.rdma.functions:
        return not_applicable("no RDMA device")
    if found is None:
        return not_applicable(_NO_RUNTIME)
    limit = found.memlock
    said = f" ({limit.setting.value} at {limit.setting.where})" if limit.setting else ""
    value = limit.process or (str(limit.setting.value) if limit.setting else None)
    if value in ("unlimited", "infinity"):
        return ok(f"unlimited{said}")
    if node.koordra.hook_registered:
        return ok(f"{value or 'unknown'}{said}; koordra's hook lifts it for holders of NICs")
    shown = f"{value} bytes" if value and value.isdecimal() else value or "systemd's default, 8 MiB"
    remedy = (
        f"LimitMEMLOCK=infinity in /etc/systemd/system/{limit.unit}.d/memlock.conf, daemon-reload, restart; "
        "or run koordra's NRI hook, which lifts it"
    )
    return problem(f"{found.kind} may lock {shown}{said}", remedy)


def _switch(
    found: Runtime, setting: Setting | None, on_since: Mapping[str, tuple[int, int]]
) -> tuple[bool | None, str]:
    """On, off, or None where it cannot be known; and what says so."""
    if setting is not None:
        return bool(setting.value), setting.where
    if found.release is None:
        return None, f"no line says it, and the version of {found.kind}, which then decides, cannot be asked"
    on = found.release >= on_since[found.kind]
    return on, f"the default of {found.kind} {found.version}, no line says otherwise"


def _new(found: Runtime) -> bool:
    return found.release is None or found.release >= (2, 0)


def _reported(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _real(path: str) -> str:
    """/var/run is /run on every node."""
    return f"/{path.strip('/')}".replace("/var/run/", "/run/", 1)
