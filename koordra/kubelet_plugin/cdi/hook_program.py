"""The program koordra-cdi-hook on the node, where the container runtime starts it.

The plugin's image has it; the runtime looks for it on the host. So the plugin writes it to a folder that both
call the same, under a name with the digest of its content, by rename: a claim's CDI file names one content
for ever, and a running plugin's update never changes a file that a runtime is executing.

    --hook-dir, else on a node      /var/lib/koordra/hook, <state>/hook
    below another root (tests)      <state>/hook

The first folder counts in which the program can be written and started: some systems mount /var noexec (COS,
where /home/kubernetes/bin is for programs). In a pod with `hostUsers: false` the hook is nobody on the node,
so every folder above it has to be world-traversable; the kubelet's directory, where the state is, may not be,
which is why it comes last.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordra.errors import NodeError, PrepareError
from koordra.logs import get_logger
from koordra.node_state.disk import Disk

log = get_logger(__name__)

NAME: Final = "koordra-cdi-hook"
INSTALLED: Final = (
    Path("/opt/koordra/lib"),
    Path(__file__).resolve().parents[3] / "build" / "native" / "cdi-hook",
)
"""Where the image, or a checkout after `make -C native`, has it."""
_USUAL: Final = Path("/var/lib/koordra/hook")
_USAGE: Final = b"koordra-cdi-hook: it is called as"
_STARTS_WITHIN: Final = 10.0
_MODE: Final = 0o755


def folders_for(*, chosen: Path | None, root: Path, state: Path) -> tuple[Path, ...]:
    """Where to try, in order."""
    if chosen is not None:
        return (chosen.absolute(),)
    return (_USUAL, state / "hook") if root == Path("/") else (state / "hook",)


class HookProgram:
    """`folders` are tried in order; `installed` are those that may have the built program."""

    def __init__(self, folders: Iterable[Path], *, installed: Iterable[Path] = INSTALLED) -> None:
        self._folders = tuple(folders)
        self._installed = tuple(installed)
        self._path: Path | None = None
        self._known: tuple[int, ...] | None = None
        """What the installed program looked like when it was last known to run."""

    @property
    def built(self) -> Path | None:
        return next((folder / NAME for folder in self._installed if (folder / NAME).is_file()), None)

    def path(self) -> str | None:
        """The program on the node, written if it is not there, or no longer what it was; None where this
        koordra was built without it. Raises PrepareError where no folder can have it."""
        if self._path is None or self._known is None or Disk().identity(self._path) != self._known:
            self._path = self._install()
            self._known = Disk().identity(self._path) if self._path else None
        return str(self._path) if self._path else None

    def _install(self) -> Path | None:
        built = self.built
        if built is None:
            log.warning("cdi_hook_missing", effect="containers get no ld cache", remedy="make -C native")
            return None
        content = built.read_bytes()
        problems = []
        for folder in self._folders:
            try:
                path = _write(folder, content)
            except (OSError, NodeError, subprocess.TimeoutExpired) as error:
                problems.append(f"{folder}: {error}")
                continue
            barred = _barred(path)
            if barred is not None:
                log.warning(
                    "cdi_hook_not_for_user_namespaces", folder=str(barred), remedy="chmod o+x, or --hook-dir"
                )
            log.info("cdi_hook_installed", path=str(path))
            return path
        raise PrepareError(
            f"{NAME} cannot be installed on this node; name a folder with --hook-dir: {'; '.join(problems)}"
        )


def _write(folder: Path, content: bytes) -> Path:
    path = folder / f"{NAME}-{hashlib.sha256(content).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True, mode=_MODE)
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise NodeError("is mounted noexec")
    if not path.exists() or path.read_bytes() != content:
        temporary = folder / f".{path.name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.chmod(_MODE)
        temporary.rename(path)
    path.chmod(_MODE)
    done = subprocess.run(
        [str(path)],
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_STARTS_WITHIN,
        check=False,
    )
    if not done.stderr.startswith(_USAGE):
        raise NodeError(
            f"{path.name} does not run here: exit status {done.returncode}, {done.stderr[-200:]!r}"
        )
    return path


def _barred(path: Path) -> Path | None:
    """The first folder above that only its owner may pass."""
    return next((folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH), None)
