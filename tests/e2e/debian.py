"""A real container runtime from Debian's packages, unpacked privately: nothing of the system is installed or
changed.

containerd comes from the newest suite whose build runs here (sid, else trixie), runc and busybox from the
system's own suite. The mirror and keyring are those of the system's own apt sources; lists and packages live
in a cache folder, which a second run uses as it is. A sid version disappears from the mirror when the next
one arrives, so none is pinned.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUNTIME_SUITES: Final = ("sid", "trixie")
SYSTEM_PACKAGES: Final = ("runc", "busybox-static", "libseccomp2")

_STANZA_FIELD = re.compile(r"^([A-Za-z-]+):[ \t]*(.*)$")
_ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.*\bmain\b.*)$"
)


class Unavailable(Exception):
    """This machine cannot have the runtime; the text says why."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the system gets Debian packages from: one mirror and the keyring that vouches for it."""

    uri: str
    signed_by: str
    suite: str


@dataclass(frozen=True, slots=True)
class Runtime:
    """Unpacked programs. `version` is what containerd says of itself."""

    root: Path
    suite: str
    version: str

    @property
    def path(self) -> str:
        """PATH with the shim and runc in it."""
        return os.pathsep.join([str(self.root / "usr/bin"), str(self.root / "usr/sbin"), os.environ["PATH"]])

    @property
    def containerd(self) -> Path:
        return self.root / "usr/bin/containerd"

    @property
    def ctr(self) -> Path:
        return self.root / "usr/bin/ctr"

    @property
    def runc(self) -> Path:
        return self.root / "usr/sbin/runc"

    @property
    def busybox(self) -> Path:
        return next(
            path for path in (self.root / "bin/busybox", self.root / "usr/bin/busybox") if path.exists()
        )


def obtain(cache: Path, *, suites: Sequence[str] = RUNTIME_SUITES) -> Runtime:
    """The runtime of the first suite that can be had and runs, from the cache or the mirror. Raises
    Unavailable."""
    problems = []
    for suite in suites:
        root = cache / suite
        if not (root / "complete").exists():
            try:
                _unpack(root, suite=suite, archive=system_archive())
            except Unavailable as error:
                problems.append(f"{suite}: {error}")
                continue
        try:
            version = _output([str(root / "usr/bin/containerd"), "--version"])
            _output([str(root / "usr/sbin/runc"), "--version"])
        except Unavailable as error:
            problems.append(f"{suite}: {error}")
            continue
        (root / "complete").touch()
        return Runtime(root=root, suite=suite, version=version.split()[2])
    raise Unavailable("; ".join(problems))


def unpacked(cache: Path, packages: Sequence[str], *, suite: str = "", needed: bool = False) -> Path:
    """The files of packages of a suite (the system's own), from the cache or the mirror; with those that they
    need and this system lacks. Raises Unavailable."""
    root = cache / "-".join(packages)
    if not root.exists():
        archive = system_archive()
        partial = root.with_name(f"{root.name}.{os.getpid()}")
        try:
            _download(partial, packages, suite=suite or archive.suite, archive=archive, needed=needed)
            partial.rename(root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return root


def system_archive(apt: Path = Path("/etc/apt")) -> Archive:
    """The first Debian source of this system that has `main` and is not its security archive. Raises
    Unavailable."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise Unavailable(f"there is no {tool}")
    folder = apt / "sources.list.d"
    for path in [*sorted(folder.glob("*.sources")), apt / "sources.list", *sorted(folder.glob("*.list"))]:
        found = _archive_of(path) if path.exists() else None
        if found is not None:
            return found
    raise Unavailable("the system has no apt source for Debian's main archive")


def _archive_of(path: Path) -> Archive | None:
    text = path.read_text()
    stanzas = text.split("\n\n") if path.suffix == ".sources" else []
    for stanza in stanzas:
        matched = (_STANZA_FIELD.match(line) for line in stanza.splitlines())
        fields = {found[1].lower(): found[2] for found in matched if found}
        uri = next(iter(fields.get("uris", "").split()), "")
        suite = next(iter(fields.get("suites", "").split()), "")
        if "main" in fields.get("components", "").split() and _is_debian(uri, suite):
            return Archive(uri, fields.get("signed-by", ""), suite)
    for line in text.splitlines() if not stanzas else []:
        found = _ONE_LINE.match(line.strip())
        if found and _is_debian(found["uri"], found["suite"]):
            options = dict(
                option.split("=", 1) for option in (found["options"] or "").split() if "=" in option
            )
            return Archive(found["uri"], options.get("signed-by", ""), found["suite"])
    return None


def _is_debian(uri: str, suite: str) -> bool:
    return uri.rstrip("/").endswith("/debian") and "-" not in suite and bool(suite)


def _unpack(root: Path, *, suite: str, archive: Archive) -> None:
    partial = root.with_name(f"{root.name}.{os.getpid()}")
    try:
        for from_suite, packages in ((suite, ("containerd",)), (archive.suite, SYSTEM_PACKAGES)):
            _download(partial, packages, suite=from_suite, archive=archive)
        shutil.rmtree(root, ignore_errors=True)
        partial.rename(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


_WITH_NEEDED: Final = ("install", "--download-only", "--no-install-recommends", "-o", "Debug::NoLocking=1")


def _download(
    root: Path, packages: Sequence[str], *, suite: str, archive: Archive, needed: bool = False
) -> None:
    downloads = root / "apt"
    apt = _apt(downloads, suite=suite, archive=archive)
    _output([*apt, "update"])
    _output([*apt, *(_WITH_NEEDED if needed else ("download",)), *packages], cwd=downloads)
    for package in sorted(downloads.rglob("*.deb")):
        _output(["dpkg", "-x", str(package), str(root)])
    shutil.rmtree(downloads)


def _apt(folder: Path, *, suite: str, archive: Archive) -> list[str]:
    """apt-get with lists and sources of its own."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    signed = f"[signed-by={archive.signed_by}] " if archive.signed_by else ""
    (folder / "src.list").write_text(f"deb {signed}{archive.uri} {suite} main\n")
    options = {
        "Dir::Etc::sourcelist": folder / "src.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Sandbox::User": "root",
        "APT::Get::List-Cleanup": "0",
    }
    return [
        "apt-get",
        "-qq",
        *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
    ]


def _output(command: list[str], *, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} {command[-1]}: {error}") from error
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(
            f"{Path(command[0]).name} {command[-1]}: {reason[-1] if reason else done.returncode}"
        )
    return done.stdout
