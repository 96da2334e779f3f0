"""Programs of the GPU driver, run on the node: nvidia-smi and nvidia-cuda-mps-control.

A program is run in the host's root, by its path there, with its driver's libraries: a driver container's root
does not have the host's folders that MPS shares with containers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Protocol

from koordra.errors import PrepareError
from koordra.kubelet_plugin.nvidia_driver.driver_files import program
from koordra.kubelet_plugin.nvidia_driver.driver_root import Home
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource

WITHIN: Final = 10.0
"""Seconds that a program has to answer."""
_LONGEST: Final = 300
"""Characters of what a program said that an error quotes."""
_MOST: Final = 1 << 20
"""Bytes of what a program said that are read."""

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

    def why_not(self, name: str) -> str | None:
        """Why the node has no such program; None where it has."""
        try:
            self.command(name, (), {})
        except PrepareError as error:
            return str(error)
        return None

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
        error or does not end in time. A daemon that it leaves behind may keep its streams: they are files,
        and no pipes whose end somebody would wait for."""
        words = self.command(name, arguments, env or {}, shm=shm)
        what = " ".join((name, *arguments, *([said.strip()] if said else [])))
        with TemporaryFile() as asked, TemporaryFile() as told, TemporaryFile() as complained:
            asked.write(said.encode())
            asked.seek(0)
            try:
                process = subprocess.Popen(words, stdin=asked, stdout=told, stderr=complained)
                code = process.wait(within)
            except subprocess.TimeoutExpired as error:
                process.kill()  # one that the driver holds does not end, and is not waited for
                raise PrepareError(f"{what}: no answer within {within:g} s") from error
            except OSError as error:
                raise PrepareError(f"{what}: {error.strerror}") from error
            answer, complaint = _read(told), _read(complained)
        if code != 0:
            quoted = (complaint or answer).strip()[:_LONGEST] or "nothing was said"
            raise ProgramFailed(f"{what}: it ended with {code}: {quoted}", code)
        return answer


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST).decode(errors="replace")
