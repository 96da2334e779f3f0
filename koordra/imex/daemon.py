"""One run of NVIDIA's daemon, and questions to it.

The driver may be the host's or a driver container's, and its programs find their libraries in its root. So
the daemon runs there (chroot), in a mount namespace of its own, in which its folder is at IN_ROOT and `hosts`
is /etc/hosts, and /run/nvidia-imex the domain's: neither the host nor a driver container sees that. It gets
SIGTERM when its supervisor dies (prctl PR_SET_PDEATHSIG): no daemon outlives the one who knows for whom it
runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.imex.config_files import CONFIG, HOSTS, IN_ROOT, RUN

DAEMON: Final = "nvidia-imex"
CONTROL: Final = "nvidia-imex-ctl"
ENDS_WITHIN: Final = 10.0
"""Seconds after SIGTERM until SIGKILL: it tells its peers, and ends what they have imported."""
ANSWERS_WITHIN: Final = 5.0

Command = Callable[[str, Sequence[str]], list[str]]
"""How a program of the driver is started with its arguments. Raises NodeError where there is none."""

_IN_ROOT: Final = f"""\
set -e
mount --bind "$1" "$2{IN_ROOT}"
mount --bind "$1/{HOSTS}" "$2/etc/hosts"
mount -t tmpfs tmpfs "$2/run"
mkdir "$2/run/nvidia-imex"
mount --bind "$1/{RUN}" "$2/run/nvidia-imex"
root=$2
shift 2
exec chroot "$root" "$@"
"""


def in_root(find: Callable[[str], tuple[Path, str]], folder: Path) -> Command:
    """`find`: a program's name -> the driver's root, and the program's path there; raises NodeError where
    there is none. `folder`: the daemon's."""

    def command(name: str, arguments: Sequence[str]) -> list[str]:
        root, path = find(name)
        inside = ["sh", "-c", _IN_ROOT, "sh", str(folder), str(root), path, *arguments]
        alone = ["unshare", "--mount", "--propagation", "private", *inside]
        return ["setpriv", "--pdeathsig", "TERM", *alone]

    return command


class Daemon:
    """`folder` has its configuration."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises NodeError."""
        words = self._command(DAEMON, ["-c", f"{IN_ROOT}/{CONFIG}"])
        try:
            # Its log goes where the supervisor's goes.
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/")
        except OSError as error:
            raise NodeError(f"{DAEMON} cannot be started: {error}") from error

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> int | None:
        """The exit code of one that ended by itself (negative: of the signal)."""
        return self._process.poll() if self._process is not None else None

    def resolve_again(self) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Ends it, and waits until it has ended."""
        if self._process is None:
            return
        if self.runs:
            self._process.terminate()
            try:
                self._process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def answer(self) -> str:
        """What nvidia-imex-ctl says of it: READY, or anything else."""
        try:
            words = self._command(CONTROL, ["-c", f"{IN_ROOT}/{CONFIG}", "-q"])
            asked = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWERS_WITHIN, check=False
            )
        except (NodeError, OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        said = (asked.stdout + asked.stderr).decode(errors="replace").strip()
        return said if not asked.returncode else f"{said or 'nothing'} (exit {asked.returncode})"
