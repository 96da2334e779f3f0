"""Programs of the GPU driver, run on the node: nvidia-smi and nvidia-cuda-mps-control.

A program is run in the host's root, by its path there, with its driver's libraries: a driver container's root
does not have the host's folders that MPS shares with containers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from koordra.errors import PrepareError
from koordra.kubelet_plugin.nvidia_driver.driver_files import program
from koordra.kubelet_plugin.nvidia_driver.driver_root import Home
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource

WITHIN: Final = 10.0
"""Seconds that a program has to answer."""
_LONGEST: Final = 300
"""Characters of what a program said that an error quotes."""

_OWN_SHM: Final = 'mount --bind "$1" "$2/dev/shm" && shift 2 && exec "$@"'


class ProgramFailed(PrepareError):
    """The program ended with `code`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Command(Protocol):
    """How a program is run with arguments and an environment, and with a /dev/shm of its own. Raises
    PrepareError where there is none."""

    def __call__(
        self, name: str, arguments: Sequence[str], env: Mapping[str, str], *, shm: Path | None = None
    ) -> list[str]: ...


def on_host(homes: HomeSource) -> Command:
    """The command that runs a program of the driver that the node has now."""

    def command(
        name: str, arguments: Sequence[str], env: Mapping[str, str], *, shm: Path | None = None
    ) -> list[str]:
        home = homes.now()
        path = program(home.driver, name) if home.driver else None
        if home.driver is None or path is None:
            raise PrepareError(f"the node's GPU driver has no {name} ({home})")
        words = [f"{key}={value}" for key, value in env.items()]
        if home.driver.kind is not Home.HOST and home.nvml is not None:
            folder = "/" / home.nvml.parent.relative_to(home.driver.root)
            words.append(f"LD_LIBRARY_PATH={home.driver.host_path(str(folder))}")
        root = homes.host.here
        found = [] if str(root) == "/" else ["chroot", str(root)]
        if shm is not None:
            alone = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _OWN_SHM, "sh"]
            found = [*alone, str(shm), str(root).rstrip("/"), *found]
        path = home.driver.host_path(path)
        return [*found, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *words, path, *arguments]

    return command


@dataclass(frozen=True, slots=True)
class DriverPrograms:
    command: Command

    def has(self, name: str) -> bool:
        try:
            self.command(name, (), {})
        except PrepareError:
            return False
        return True

    def run(
        self,
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        said: str = "",
        shm: Path | None = None,
        within: float = WITHIN,
    ) -> str:
        """What the program answers to `said`. Raises PrepareError, which quotes it, where it ends with an
        error or does not end in time."""
        words = self.command(name, arguments, env or {}, shm=shm)
        what = " ".join((name, *arguments, *([said.strip()] if said else [])))
        try:
            done = subprocess.run(
                words,
                input=said,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PrepareError(f"{what}: no answer within {within:g} s") from error
        except OSError as error:
            raise PrepareError(f"{what}: {error.strerror}") from error
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip()[:_LONGEST]
            why = f"{what}: it ended with {done.returncode}: {told or 'nothing was said'}"
            raise ProgramFailed(why, done.returncode)
        return done.stdout
