"""The process that becomes a container's command: `python3 -I command_init.py`, with the plan as JSON on its
standard input.

    argv, environment    of the command
    hostname             its host name
    mounts               [source, destination]: files and folders of this machine
    root                 an empty folder

It imports nothing of koordra, so that it starts at once. In new user (where it is not root), mount, pid and
host name namespaces a folder in memory becomes the root, in which everything of this machine's root is bound,
so that a volume can be where this machine has nothing. The command is the first process of its namespace; all
that it starts ends with it, and it ends with whoever started this program.

Ends with the command's exit code, and 125 where no namespace could be made, with the reason on standard
error.
"""

# It starts for every container: pathlib would take a good part of its time.
# ruff: noqa: PTH102, PTH110, PTH112, PTH115, PTH123, PTH211

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from typing import Any

NO_COMMAND = 125
_NEWNS, _NEWUTS, _NEWUSER, _NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    arguments = os.fsencode(source), os.fsencode(target), kind.encode() or None
    _call(f"mount {source} on {target}", _libc.mount(*arguments, ctypes.c_ulong(flags), None))


def _own_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _libc.unshare(_NEWNS | _NEWUTS | _NEWPID | (_NEWUSER if user else 0)))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def _shadow(root: str, folder: str) -> None:
    """The folder of this machine, in memory: its entries are the machine's, and there is room for more."""
    _mount("koordra-demo", root + folder, "tmpfs")
    for entry in os.scandir(folder or "/"):
        target = f"{root}{folder}/{entry.name}"
        with contextlib.suppress(OSError):  # what cannot be bound is missing
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
                continue
            if entry.is_dir():
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT, 0o644))
            _mount(entry.path, target, flags=_BIND | _REC)


def _place(root: str, source: str, destination: str, made: set[str]) -> None:
    """Bind the source where the command finds it; `made`: folders in memory."""
    at = ""
    parts = [part for part in os.path.realpath(destination).split("/") if part]
    for number, part in enumerate(parts):
        here = f"{at}/{part}"
        if not os.path.exists(root + here):
            if at not in made:
                _shadow(root, at)
                made.add(at)
            if number == len(parts) - 1 and not os.path.isdir(source):
                os.close(os.open(root + here, os.O_CREAT, 0o644))
            else:
                os.mkdir(root + here)
                made.add(here)
        at = here
    _mount(source, root + at, flags=_BIND | _REC)


def _become(plan: dict[str, Any], root: str) -> None:
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _mount("none", "/", flags=_REC | _PRIVATE)
    name = plan["hostname"].encode()
    _call("sethostname", _libc.sethostname(name, len(name)))
    made = {""}
    _shadow(root, "")
    for source, destination in plan["mounts"]:
        if os.path.exists(source):
            _place(root, source, destination, made)
    os.chroot(root)
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # koordra's processes block some
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.execvpe(plan["argv"][0], plan["argv"], plan["environment"])


def main() -> None:
    plan = json.load(sys.stdin)
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        _own_namespaces()
        child = os.fork()
        if child == 0:
            _become(plan, plan["root"])
    except OSError as error:
        sys.stderr.write(f"koordra demo: the command cannot run: {error}\n")
        sys.stderr.flush()
        os._exit(NO_COMMAND)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
