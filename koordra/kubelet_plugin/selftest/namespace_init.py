"""The process that makes a container out of this machine's own root and a CDI spec's edits, and becomes a
program in it.

    python3 -I namespace_init.py PLAN          a file of JSON, written by container.py

It imports nothing of koordra, so that it starts at once, and needs root. In new mount, pid and IPC
namespaces:

1. an overlay over this machine's root, whose changes are in memory and end with the program; what is
   mounted below the root is bound in again, but for /dev, /proc, /sys, /run, and for mounts that hold the
   driver;
2. the driver's own files are taken out of it, and its ld cache is made anew, so that it is like an image:
   all that it has of the driver comes by the spec;
3. device nodes and mounts of the spec; nothing else of a GPU is in /dev;
4. the spec's hooks, with the OCI state on their standard input and the bundle's config.json beside the
   root, as runc calls them: in the container's namespaces, before pivot_root;
5. pivot_root, then the program as a child of this process, which is the namespace's first and takes its
   orphans.

Ends with the program's exit code, 128 + n for signal n, and 125 where no container could be made, with the
reason on standard error."""

# It starts for every program: pathlib would take a good part of its time.
# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH114, PTH115, PTH119, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
from typing import Any, NoReturn

NO_CONTAINER = 125
_NEWNS, _NEWIPC, _NEWPID = 0x00020000, 0x08000000, 0x20000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_FLAGS = {"ro": _RDONLY, "nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC}
_DETACH, _PDEATHSIG = 2, 1
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_BEFORE_PIVOT = ("prestart", "createRuntime", "createContainer")
_MOST_LINKS = 40
_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    _call(
        f"mount {source} on {target}",
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
    )


def inside(root: str, path: str) -> str:
    """The path below the root, its links followed as if the root were `/`: a link of the image must not
    lead out."""
    parts, at, links = [part for part in path.split("/") if part], "", 0
    while parts:
        part = parts.pop(0)
        if part in (".", ".."):
            at = at if part == "." else at.rpartition("/")[0]
            continue
        here = f"{at}/{part}"
        if os.path.islink(root + here):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"{path}: too many links")
            target = os.readlink(root + here)
            at = "" if target.startswith("/") else at
            parts = [each for each in target.split("/") if each] + parts
        else:
            at = here
    return root + at


def _bind(source: str, root: str, path: str, options: list[str]) -> None:
    target = inside(root, path)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):  # of a mount before it, which may be read-only
            with open(target, "wb"):
                pass
    _mount(source, target, flags=_BIND | (_REC if "rbind" in options else 0))
    flags = sum(_FLAGS[option] for option in options if option in _FLAGS)
    if flags:
        _mount("none", target, flags=_BIND | _REMOUNT | flags)


def _remove_driver(root: str, files: list[str]) -> None:
    """Every name of these libraries and programs, in the folders where they lie; only in the overlay."""
    for path in files:
        folder = inside(root, os.path.dirname(path))
        base = os.path.basename(path)
        library, dot, _ = base.partition(".so")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in names:
            if name == base or (dot and name.startswith(f"{library}.so")):
                os.unlink(f"{folder}/{name}")


def _holds(path: str, text: bytes) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return text in file.read()
    return False


def _renew_cache(root: str) -> None:
    """As the image's build would have done; a machine without ldconfig keeps its cache."""
    cache = f"{root}/etc/ld.so.cache"
    if _holds(cache, b"libcuda.so"):
        with contextlib.suppress(OSError):
            subprocess.run(["/sbin/ldconfig", "-r", root], check=False, stderr=subprocess.DEVNULL)


def _make_root(plan: dict[str, Any]) -> str:
    bundle = plan["bundle"]
    os.makedirs(bundle, exist_ok=True)
    _mount("koordra-selftest", bundle, "tmpfs", 0, "mode=0755")
    root = f"{bundle}/rootfs"
    for name in ("rootfs", "upper", "work"):
        os.mkdir(f"{bundle}/{name}")
    _mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={bundle}/upper,workdir={bundle}/work")
    _remove_driver(root, plan["hide"])
    _renew_cache(root)
    for path in plan["keep"]:
        with contextlib.suppress(OSError):  # what cannot be bound is missing in the container
            _bind(path, root, path, ["bind"])
    return root


def _make_system(root: str, nodes: list[list[Any]]) -> None:
    for name, kind, options in (
        ("proc", "proc", ""),
        ("run", "tmpfs", "mode=0755"),
        ("dev", "tmpfs", "mode=0755"),
    ):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        _mount(kind, f"{root}/{name}", kind, 0, options)
    with contextlib.suppress(OSError):
        _mount("/sys", f"{root}/sys", flags=_BIND | _REC)
    os.mkdir(f"{root}/dev/shm")
    _mount("shm", f"{root}/dev/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777")
    for name, (major, minor) in _NODES.items():
        _node(f"{root}/dev/{name}", major, minor)
    for name, target in _LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    for path, major, minor in nodes:
        _node(inside(root, path), major, minor)


def _node(path: str, major: int, minor: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)


def _run_hooks(plan: dict[str, Any], root: str) -> None:
    if not plan["hooks"]:
        return
    environment = [f"{name}={value}" for name, value in plan["environment"].items()]
    config = {
        "ociVersion": "1.1.0",
        "root": {"path": root},
        "process": {"env": environment, "args": plan["argv"]},
    }
    with open(f"{plan['bundle']}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    state = {
        "ociVersion": "1.1.0",
        "id": "koordra-selftest",
        "status": "creating",
        "pid": os.getpid(),
        "bundle": plan["bundle"],
    }
    for hook in plan["hooks"]:
        if hook["hookName"] not in _BEFORE_PIVOT:
            raise OSError(f"hook {hook['path']}: {hook['hookName']} is not run here")
        done = subprocess.run(
            hook.get("args") or [hook["path"]],
            executable=hook["path"],
            input=json.dumps(state).encode(),
            env=dict(each.split("=", 1) for each in hook.get("env") or ()),
            cwd=root,
            capture_output=True,
            timeout=hook.get("timeout") or 30,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise OSError(f"hook {hook['path']} ended with {done.returncode}: {said[-500:]}")


def _enter(root: str) -> None:
    os.mkdir(f"{root}/.koordra-selftest-old")
    os.chdir(root)
    _call("pivot_root", _libc.pivot_root(b".", b".koordra-selftest-old"))
    os.chdir("/")
    _call("umount", _libc.umount2(b"/.koordra-selftest-old", _DETACH))
    os.rmdir("/.koordra-selftest-old")


def _become(plan: dict[str, Any]) -> NoReturn:
    os.chdir(plan["directory"])
    os.execve(plan["argv"][0], plan["argv"], plan["environment"])


def _status(child: int) -> int:
    """The child's end as an exit code; orphans that end meanwhile are taken."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _first_process(plan: dict[str, Any]) -> int:
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _mount("none", "/", flags=_REC | _PRIVATE)
    root = _make_root(plan)
    _make_system(root, plan["nodes"])
    _bind(plan["share"], root, plan["share"], ["bind"])  # it may be in /dev/shm or /run
    for source, path, options in plan["mounts"]:
        _bind(source, root, path, options)
    _run_hooks(plan, root)
    _enter(root)
    child = os.fork()
    if child == 0:
        _become(plan)
    return _status(child)


def _fail(error: BaseException) -> NoReturn:
    sys.stderr.write(f"koordra-selftest: no container: {error}\n")
    sys.stderr.flush()
    os._exit(NO_CONTAINER)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        _call("unshare", _libc.unshare(_NEWNS | _NEWIPC | _NEWPID))
        child = os.fork()
    except OSError as error:
        _fail(error)
    if child == 0:
        try:
            os._exit(_first_process(plan))
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            _fail(error)
    sys.exit(_status(child))


if __name__ == "__main__":
    main()
