"""Which processes use a card, and to which claims they belong: NVML's lists, and /proc of the host.

    NVML    pid ─> bytes, for computing (CUDA, MPS) and for graphics; a MIG instance has lists of its own
    /proc   pid ─> claim: the claim's region is mounted in the process's mount namespace

A mount cannot be faked: it is identified by the file system and the folder on it, which only its own tenant
can reach. But a process may not show it: under another root (chroot, or a mount namespace of its own) the
kernel lists what is mounted below that root alone. Such a process, and one without mounts (preloading), is
identified by its connection to the claim's socket, where the kernel reports its pid; else by its container,
whose number is in its cgroup's path and whose claims the hook has written down. A pid is looked up together
with the start time of its process, so a reused number is another process.

The plugin has to be in the host's pid namespace: elsewhere NVML, /proc and the sockets show no other
processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter.region import REGIONS_FOLDER, uuid_spellings
from koordra.kubelet_plugin.nvidia_driver.nvml_session import BY_NAME, NvmlLibrary, NvmlUnavailable

_COMPUTING: Final = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
_STARTED, _MEMORY = 19, 20
_DRAWING: Final = "nvmlDeviceGetGraphicsRunningProcesses"
_HOSTS_NAMESPACE: Final = "pid:[4026531836]"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CardProcesses:
    """Bytes by pid (None: not reported by the driver), and which of them compute. `through_mps`: an MPS
    server computes for others, and is charged for what they use."""

    used: Mapping[int, int | None] = field(default_factory=dict)
    computing: frozenset[int] = frozenset()
    through_mps: bool = False


ProcessLists = Callable[[Iterable[str]], Mapping[str, CardProcesses]]
"""By UUID; a card that does not answer is left out. Raises NodeError where none can be asked."""


def nvml_processes(uuids: Iterable[str], *, library: NvmlLibrary = BY_NAME) -> Mapping[str, CardProcesses]:
    try:
        with library.session() as nvml:
            found = {uuid: _processes(nvml, uuid) for uuid in uuids}
    except NvmlUnavailable as error:
        raise NodeError(f"NVML cannot be asked for processes: {error}") from error
    return {uuid: card for uuid, card in found.items() if card is not None}


def _processes(nvml: Any, uuid: str) -> CardProcesses | None:
    handle = _handle(nvml, uuid)
    if handle is None:
        return None
    used: dict[int, int | None] = {}
    computing: set[int] = set()
    through_mps = False
    for name in (*_COMPUTING, _DRAWING):
        try:
            listed = getattr(nvml, name)(handle)
        except nvml.NVMLError as error:
            unknown = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND
            if getattr(error, "value", None) not in unknown or name == _COMPUTING[0]:
                return None
            continue
        except (ValueError, TypeError, AttributeError):  # a garbled answer, or bindings that are too old
            return None
        through_mps = through_mps or (name == _COMPUTING[1] and bool(listed))
        for process in listed:
            # A process that computes and draws is in both lists, with the same bytes.
            figures = used.get(process.pid, 0), process.usedGpuMemory
            used[process.pid] = None if None in figures else max(figures)
            if name != _DRAWING:
                computing.add(process.pid)
    return CardProcesses(used, frozenset(computing), through_mps)


def _handle(nvml: Any, uuid: str) -> Any:
    for spelling in uuid_spellings(uuid):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(spelling.encode())
        except nvml.NVMLError:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a claim. `claims`: those of its container, sorted; `inner_pid` and `namespace`: as it
    knows itself; `ending`: it has no memory any more, so its slot is gone, while the driver may list it for
    as long as it takes to clean up."""

    pid: int
    started: int
    claims: tuple[str, ...]
    inner_pid: int
    namespace: int
    ending: bool = False


class HostProcesses:
    """The host's processes. `claim_of` is the claim on whose socket a process (pid, start time) has called;
    `held_by`: the claims of a container."""

    def __init__(
        self,
        claims: Path,
        *,
        proc: Path = Path("/proc"),
        claim_of: Callable[[int, int], str | None] = lambda _pid, _started: None,
        held_by: Callable[[str], Iterable[str]] = lambda _container: (),
    ) -> None:
        self._claims = claims
        self._proc = proc
        self._claim_of = claim_of
        self._held_by = held_by
        self._known: dict[tuple[int, int], Process] = {}

    @property
    def all_seen(self) -> bool:
        """Whether this process is in the pid namespace of the host, which has a number of its own."""
        try:
            return (self._proc / "self" / "ns" / "pid").readlink().name == _HOSTS_NAMESPACE
        except OSError:
            return False

    def find(self, pids: Iterable[int]) -> Mapping[int, Process]:
        """Those of the pids that are of a claim of this node, now."""
        known: dict[tuple[int, int], Process] = {}
        found = {}
        places: dict[str, tuple[str, str]] | None = None
        for pid in pids:
            started = start_time(pid, proc=self._proc)
            if started is None:
                continue
            process = self._known.get((pid, started))
            if process is None:
                places = self._places() if places is None else places
                process = self._look_up(pid, started, places)
            if process is not None:
                known[pid, started] = process
                found[pid] = replace(process, ending=_with_memory(self._proc / str(pid)) is None)
        self._known = known
        return found

    def _look_up(self, pid: int, started: int, places: Mapping[str, tuple[str, str]]) -> Process | None:
        try:
            thread = _with_memory(self._proc / str(pid)) or self._proc / str(pid)
            mounted = {
                (each.device, each.root)
                for each in mounts(thread)
                if each.point.startswith(f"{REGIONS_FOLDER}/")
            }
            # The process's name is in it, which may be any bytes.
            status = (self._proc / str(pid) / "status").read_text(errors="replace")
            namespace = (thread / "ns" / "pid").readlink().name
        except OSError:
            return None
        claims = sorted(uid for uid, place in places.items() if place in mounted)
        if not claims:
            named = self._claim_of(pid, started)
            claims = [named] if named else [uid for uid in self._of_container(pid) if uid in places]
        inner = re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
        if not claims:
            return None
        return Process(
            pid=pid,
            started=started,
            claims=tuple(claims),
            inner_pid=int(inner[1]) if inner else pid,
            namespace=int(namespace.partition("[")[2].rstrip("]") or 0),
        )

    def _of_container(self, pid: int) -> Iterable[str]:
        """The claims of the outermost container that the hook knows."""
        try:
            cgroups = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            return ()
        held = (self._held_by(container) for container in dict.fromkeys(_CONTAINER.findall(cgroups)))
        return next((claims for claims in held if claims), ())

    def _places(self) -> dict[str, tuple[str, str]]:
        """Where each claim's folder is: file system, and path on it."""
        try:
            known = mounts(self._proc / "self")
            folders = sorted(self._claims.iterdir())
        except OSError:
            return {}
        found = {}
        for folder in folders:
            path = str(folder.resolve())
            mount = mount_of(path, known)
            if mount is not None:
                rest = path[len(mount.point.rstrip("/")) :]
                found[folder.name] = mount.device, mount.root.rstrip("/") + rest or "/"
        return found


def start_time(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """When the process started, in the kernel's ticks; None for one that is gone."""
    return _stat(proc / str(pid), _STARTED)


def _with_memory(process: Path) -> Path | None:
    """The process, or a thread of it where the first one has ended; None where nothing of it has memory any
    more."""
    if _stat(process, _MEMORY):
        return process
    try:
        threads = sorted((process / "task").iterdir())
    except OSError:
        return None
    return next((thread for thread in threads if _stat(thread, _MEMORY)), None)


def _stat(folder: Path, field: int) -> int | None:
    """A number of `stat`, counted from the state; the name before it may hold anything."""
    try:
        return int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[field])
    except (OSError, ValueError, IndexError):
        return None


class MountPoint(NamedTuple):
    """A file system, a path on it, where that is mounted, and whether what is mounted below shows elsewhere
    too."""

    device: str
    root: str
    point: str
    shared: bool


def mounts(process: Path) -> list[MountPoint]:
    found = []
    for line in (process / "mountinfo").read_text(errors="replace").splitlines():
        fields = line.partition(" - ")[0].split(" ")
        if len(fields) > 5:
            root, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) for text in fields[3:5])
            found.append(
                MountPoint(fields[2], root, point, any(each.startswith("shared:") for each in fields[6:]))
            )
    return found


def mount_of(path: str, known: Iterable[MountPoint]) -> MountPoint | None:
    """The mount that the path is on: the last of the innermost."""
    within = [each for each in known if path == each.point or path.startswith(each.point.rstrip("/") + "/")]
    return max(reversed(within), key=lambda each: len(each.point), default=None)
