"""Whose a process of the host is, by /proc.

    /proc/<pid>/cgroup      pid ─> container: the number that the runtime gave it, and the hook wrote down
    /proc/<pid>/mountinfo   pid ─> claim: the claim's region is mounted in the process's mount namespace

A mount cannot be faked: it is identified by the file system and the folder on it, which only its own tenant
can reach. But a process may not show it: under another root (chroot, or a mount namespace of its own) the
kernel lists what is mounted below that root alone. Such a process, and one without mounts (preloading), is
identified by its connection to the claim's socket, where the kernel reports its pid; else by its container,
whose claims the hook has written down. A pid is looked up together with the start time of its process, so a
reused number is another process.

Of a cgroup's path the outermost container counts, below the pod's cgroup where there is one: what comes after
it a container may have made itself, with any name.

The plugin has to be in the host's pid namespace: elsewhere NVML, /proc and the sockets show no other
processes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

REGIONS_FOLDER: Final = "/run/koordra/limiter"
"""Of a container: its limited claims' regions."""

_STARTED, _MEMORY = 19, 20
_HOSTS_NAMESPACE: Final = "pid:[4026531836]"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_POD: Final = re.compile(r"pod[0-9a-f]{8}[-_0-9a-f]{24,}", re.ASCII)
KEPT_FOR: Final = 30.0
"""Seconds for which what is known of a process that nobody asks for is kept."""
YOUNG_FOR: Final = 60.0
"""Seconds for which a process of no claim is looked up anew: it may yet call its claim's socket."""


@dataclass(frozen=True, slots=True)
class Process:
    """`claims`: the limited ones of its container, sorted; `inner_pid` and `namespace`: as it knows itself;
    `container`: its container's number, empty outside of containers; `ending`: it has no memory any more, so
    its slot is gone, while the driver may list it for as long as it takes to clean up."""

    pid: int
    started: int
    claims: tuple[str, ...]
    inner_pid: int
    namespace: int
    container: str = ""
    ending: bool = False


@dataclass(slots=True)
class _Known:
    process: Process
    first_seen: float
    seen: float
    asked: float


class HostProcesses:
    """The host's processes, for any thread. `claims` is the folder of the limited claims' regions;
    `claim_of`: the claim on whose socket a process (pid, start time) has called, `last_caller`: on whose the
    last one of that pid has; `held_by`: the claims of a container."""

    def __init__(
        self,
        claims: Path,
        *,
        proc: Path = Path("/proc"),
        claim_of: Callable[[int, int], str | None] = lambda _pid, _started: None,
        last_caller: Callable[[int], str | None] = lambda _pid: None,
        held_by: Callable[[str], Iterable[str]] = lambda _container: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claims = claims
        self._clock = clock
        self._lock = threading.Lock()
        self._proc = proc
        self._claim_of = claim_of
        self._last_caller = last_caller
        self._held_by = held_by
        self._known: dict[int, _Known] = {}
        self._forget_at = clock() + KEPT_FOR / 2

    @property
    def all_seen(self) -> bool:
        """Whether this process is in the pid namespace of the host, which has a number of its own."""
        try:
            return (self._proc / "self" / "ns" / "pid").readlink().name == _HOSTS_NAMESPACE
        except OSError:
            return False

    def find(self, pids: Iterable[int], *, within: float = 0.0) -> Mapping[int, Process]:
        """Those of the pids that there are. `within`: it does for one of them to have been there so many
        seconds ago."""
        with self._lock:
            now = self._clock()
            places: dict[str, tuple[str, str]] | None = None
            found = {}
            for pid in pids:
                known = self._known.get(pid)
                if known is not None and now - known.seen < within:
                    known.asked = now
                    found[pid] = known.process
                    continue
                state = _state(self._proc / str(pid))
                if state is None:
                    continue
                started, has_memory = state
                if known is not None and known.process.started != started:
                    known = None
                process = known.process if known else None
                if process is None or (not process.claims and known and now - known.first_seen < YOUNG_FOR):
                    places = self._places() if places is None else places
                    process = self._look_up(pid, started, places)
                if process is not None:
                    ending = not has_memory and _with_memory(self._proc / str(pid)) is None
                    found[pid] = process if process.ending == ending else replace(process, ending=ending)
                    self._known[pid] = _Known(found[pid], known.first_seen if known else now, now, now)
            if now >= self._forget_at:
                self._forget_at = now + KEPT_FOR / 2
                self._known = {pid: each for pid, each in self._known.items() if now - each.asked < KEPT_FOR}
            return found

    def ended(self, pid: int) -> Process | None:
        """What was last known of a process that has ended: asked for a moment ago, or never, if it was there
        for so short a time, but by then it may have called its claim's socket."""
        known = self._known.get(pid)
        if known is not None:
            return known.process
        claim = self._last_caller(pid)
        return None if claim is None else Process(pid, 0, (claim,), pid, 0, ending=True)

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
            container = container_in(self._cgroup(pid))
        except OSError:
            return None
        claims = sorted(uid for uid, place in places.items() if place in mounted)
        if not claims:
            named = self._claim_of(pid, started)
            claims = [named] if named else [uid for uid in self._held_by(container) if uid in places]
        inner = re.search(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
        return Process(
            pid=pid,
            started=started,
            claims=tuple(claims),
            inner_pid=int(inner[1]) if inner else pid,
            namespace=int(namespace.partition("[")[2].rstrip("]") or 0),
            container=container,
        )

    def _cgroup(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        except OSError:
            return ""

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


def container_in(cgroup: str) -> str:
    """The outermost container of a text of /proc/<pid>/cgroup; empty without one. Whatever the hierarchies
    (v1 has several lines), drivers (slices or folders) and runtimes (`cri-containerd-`, `crio-`, `docker-`)
    are called, a container's number is 64 hexadecimal digits."""
    for line in cgroup.split("\n"):  # a name may have other separators of lines in it
        path = line.partition(":")[2].partition(":")[2]
        pod = _POD.search(path)
        found = _CONTAINER.search(path, pod.end() if pod else 0)
        if found:
            return found[0]
    return ""


def is_pods(cgroup: str) -> bool:
    """Whether the last part of a cgroup's path is a pod's."""
    return _POD.search(cgroup.rpartition("/")[2]) is not None


def start_time(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """When the process started, in the kernel's ticks; None for one that is gone."""
    state = _state(proc / str(pid))
    return state[0] if state else None


def _with_memory(process: Path) -> Path | None:
    """The process, or a thread of it where the first one has ended; None where nothing of it has memory any
    more."""
    try:
        for thread in (process, *sorted((process / "task").iterdir())):
            state = _state(thread)
            if state and state[1]:
                return thread
    except OSError:
        return None
    return None


def _state(folder: Path) -> tuple[int, bool] | None:
    """When it started, and whether it has memory, by `stat`; the name in there may hold anything."""
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[_STARTED]), fields[_MEMORY] != "0"
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
