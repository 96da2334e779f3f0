"""The container runtime of a node: which it is, its version, and the settings that matter to devices, each
with the line that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from koordra.kubelet_plugin.node_check.readings.container_runtime import containerd_config, crio_config
from koordra.kubelet_plugin.node_check.readings.container_runtime.containerd_config import cri, nri
from koordra.kubelet_plugin.node_check.readings.container_runtime.cri_client import RuntimeAnswer
from koordra.kubelet_plugin.node_check.readings.container_runtime.systemd_unit import service_setting
from koordra.kubelet_plugin.node_check.readings.container_runtime.toml_settings import Settings
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.kubelet_plugin.node_check.readings.processes import Process, memlock_of
from koordra.kubelet_plugin.node_check.readings.setting import Setting

Kind = Literal["containerd", "cri-o"]
_PROGRAMS: Final[Mapping[str, Kind]] = {"containerd": "containerd", "crio": "cri-o"}
_BIN: Final = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "bin", "sbin", "opt/bin")
_NRI_SOCKET: Final = "/var/run/nri/nri.sock"
_UNITS: Final = {"containerd": "containerd.service", "cri-o": "crio.service"}


@dataclass(frozen=True, slots=True)
class Memlock:
    """`process`: the soft limit that the running runtime has; `unit`: the service, `setting` its
    LimitMEMLOCK."""

    process: str | None = None
    unit: str | None = None
    setting: Setting | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings that no line says are None. `running` is the configuration that the runtime itself reports,
    empty where it cannot be asked."""

    kind: Kind
    version: str | None = None
    files: tuple[str, ...] = ()
    garbled: tuple[str, ...] = ()
    cdi: Setting | None = None
    cdi_folders: Setting | None = None
    nri: Setting | None = None
    nri_connections: Setting | None = None
    nri_timeout: Setting | None = None
    nri_socket: str = _NRI_SOCKET
    nri_socket_exists: bool = False
    default_runtime: Setting | None = None
    systemd_cgroups: Setting | None = None
    selinux: Setting | None = None
    oci_runtime: str | None = None
    oci_version: str | None = None
    memlock: Memlock = field(default_factory=Memlock)
    running: Mapping[str, Any] = field(default_factory=dict)

    @property
    def release(self) -> tuple[int, int] | None:
        """The first two numbers of the version."""
        return release_of(self.version)


def release_of(version: str | None) -> tuple[int, int] | None:
    """The first two numbers."""
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(map(str.isdecimal, parts[:2])) else None


def read_runtime(
    root: HostFiles, processes: tuple[Process, ...], live: LiveNode, *, endpoint: str | None = None
) -> Runtime | None:
    """The runtime that runs, else the one that is configured; None where there is neither. Of several
    (Docker's containerd beside k3s's) that counts which the kubelet talks to (`endpoint`, the path of its
    socket), else one that serves CRI."""
    found = [one for one in processes if one.name in _PROGRAMS and not one.in_pod]
    if endpoint is not None:
        found.sort(key=lambda one: _address(root, one) != _below_run(endpoint))
    answered = ((one, _answer_at(root, live, (_address(root, one),))) for one in found)
    process, answer = next((each for each in answered if each[1]), (found[0] if found else None, None))
    kind = _kind(root, process)
    if kind is None:
        return None
    if process is None:
        answer = _answer_at(root, live, _sockets(kind))
    version = answer.version if answer else _program(root, live, kind, process)
    if kind == "containerd":
        path = _config_path(root, process)
        settings, files = containerd_config.read_containerd(root, path, release=release_of(version))
        configured = _of_containerd(settings)
    else:
        path = (process.option("--config", "-c") if process else None) or crio_config.PATH
        folder = (process.option("--config-dir", "-d") if process else None) or crio_config.DROP_INS
        settings, files = crio_config.read_crio(root, path.lstrip("/"), folder.lstrip("/"))
        configured = _of_crio(settings)
    # k3s has its own runc beside its containerd.
    beside = (_executable(root, process) or "").rpartition("/")[0]
    oci = _oci_runtime(root, configured.pop("oci"), beside)
    nri_socket = str(configured.pop("nri_socket"))
    return Runtime(
        kind=kind,
        version=version,
        files=tuple(file.path for file in files),
        garbled=tuple(f"{file.path}: {file.error}" for file in files if file.error),
        nri_socket=nri_socket,
        nri_socket_exists=root.is_socket(nri_socket),
        oci_runtime=f"/{oci}" if oci else None,
        oci_version=live.program_version(root.directory, oci) if oci else None,
        memlock=_memlock(root, kind, process),
        running=answer.config if answer else {},
        **configured,
    )


def _kind(root: HostFiles, process: Process | None) -> Kind | None:
    if process is not None:
        return "containerd" if process.name == "containerd" else "cri-o"
    if any(map(root.is_file, containerd_config.PATHS)):
        return "containerd"
    return "cri-o" if root.is_file(crio_config.PATH) or root.is_folder(crio_config.DROP_INS) else None


def _sockets(kind: Kind) -> tuple[str, ...]:
    """The usual ones, the program's own default first."""
    return containerd_config.SOCKETS if kind == "containerd" else crio_config.SOCKETS


def _address(root: HostFiles, process: Process) -> str:
    """Its socket, below the root, as its command line or its configuration says."""
    named = process.option("--address", "-a", "--listen")
    if named is None and process.name == "containerd":
        settings, _ = containerd_config.read_containerd(root, _config_path(root, process), release=None)
        said = settings.get(("grpc", "address"))
        named = said.value if said and isinstance(said.value, str) else None
    return _below_run(named) if named else _sockets(_PROGRAMS[process.name])[0]


def _below_run(address: str) -> str:
    """/var/run is /run on every node."""
    return address.removeprefix("unix://").strip("/").replace("var/run/", "run/", 1)


def _answer_at(root: HostFiles, live: LiveNode, sockets: tuple[str, ...]) -> RuntimeAnswer | None:
    there = (live.runtime(root.path(path)) for path in sockets if root.is_socket(path))
    return next(filter(None, there), None)


def _config_path(root: HostFiles, process: Process | None) -> str:
    named = process.option("--config", "-c") if process else None
    if named:
        return named
    return next(filter(root.is_file, containerd_config.PATHS), containerd_config.PATHS[0])


def _program(root: HostFiles, live: LiveNode, kind: Kind, process: Process | None) -> str | None:
    """The version that the running program prints, else the installed one."""
    name = next(program for program, known in _PROGRAMS.items() if known == kind)
    path = _executable(root, process) or _found_program(root, name)
    return live.program_version(root.directory, path) if path else None


def _executable(root: HostFiles, process: Process | None) -> str | None:
    path = "/".join(root.link(f"proc/{process.pid}/exe")).lstrip("/") if process else ""
    return path if root.is_file(path) else None


def _found_program(root: HostFiles, name: str, *first: str) -> str | None:
    return next((f"{folder}/{name}" for folder in (*first, *_BIN) if root.is_file(f"{folder}/{name}")), None)


def _of_containerd(settings: Settings) -> dict[str, Any]:
    default = settings.get(cri("containerd", "default_runtime_name"))
    name = default.value if default and isinstance(default.value, str) else "runc"
    options = ("containerd", "runtimes", name, "options")
    disabled = settings.get(nri("disable"))
    no_connections = settings.get(nri("disable_connections"))
    binary, socket = settings.get(cri(*options, "BinaryName")), settings.get(nri("socket_path"))
    return {
        "cdi": settings.get(cri("enable_cdi")),
        "cdi_folders": settings.get(cri("cdi_spec_dirs")),
        "nri": _negated(disabled),
        "nri_connections": _negated(no_connections),
        "nri_timeout": settings.get(nri("plugin_request_timeout")),
        "nri_socket": socket.value if socket else _NRI_SOCKET,
        "default_runtime": default,
        "systemd_cgroups": settings.get(cri(*options, "SystemdCgroup")),
        "selinux": settings.get(cri("enable_selinux")),
        "oci": binary.value if binary else "runc",
    }


def _of_crio(settings: Settings) -> dict[str, Any]:
    default = settings.get(("crio", "runtime", "default_runtime"))
    name = default.value if default and isinstance(default.value, str) else "crun"
    path = settings.get(("crio", "runtime", "runtimes", name, "runtime_path"))
    driver = settings.get(("crio", "runtime", "cgroup_manager"))
    socket = settings.get(("crio", "nri", "nri_listen"))
    return {
        "cdi_folders": settings.get(("crio", "runtime", "cdi_spec_dirs")),
        "nri": settings.get(("crio", "nri", "enable_nri")),
        "nri_connections": _negated(settings.get(("crio", "nri", "nri_disable_connections"))),
        "nri_timeout": settings.get(("crio", "nri", "nri_plugin_request_timeout")),
        "nri_socket": socket.value if socket else _NRI_SOCKET,
        "default_runtime": default,
        "systemd_cgroups": Setting(driver.value == "systemd", driver.where) if driver else None,
        "selinux": settings.get(("crio", "runtime", "selinux")),
        "oci": path.value if path and path.value else name,
    }


def _negated(setting: Setting | None) -> Setting | None:
    return Setting(not setting.value, setting.where) if setting else None


def _oci_runtime(root: HostFiles, named: Any, beside: str) -> str | None:
    """Where the program is that starts containers, below the root; first looked for in the folder
    `beside`."""
    if not isinstance(named, str) or not named:
        return None
    if named.startswith("/"):
        return named.lstrip("/") if root.is_file(named) else None
    return _found_program(root, named, beside)


def _memlock(root: HostFiles, kind: Kind, process: Process | None) -> Memlock:
    unit = (process.unit if process else None) or _UNITS[kind]
    return Memlock(
        process=memlock_of(root, process.pid) if process else None,
        unit=unit,
        setting=service_setting(root, unit, "LimitMEMLOCK"),
    )
