"""A container around one program: what a CDI spec changes, applied to a process of this machine.

`namespace`: new mount, pid and IPC namespaces with an overlay of this machine's root (namespace_init.py),
where the driver is what the spec brings, as in an image. Needs root, mounts and an overlay file system.

`process`: a plain process, for machines that are containers themselves and may not mount. The spec's
variables are its environment; of the spec's mounts the libraries are links in a folder that stands in
LD_LIBRARY_PATH, and the limiter is told where its region (no other claim's) and the driver are. Device
nodes, ld cache, hooks and everything else that a mount namespace has are not tried there, and the driver of
the machine itself stays reachable.

Programs of both get the same variables of this process and no others (report.allowed_environment), without
those that choose cards, platforms or allocators, without folders of libraries that hold the machine's driver,
and with caches of compiled code that outlive the container."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import koordra
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.isolation.limiter.backend import DRIVER_FOLDER
from koordra.kubelet_plugin.selftest import namespace_init
from koordra.kubelet_plugin.selftest.claims import AppliedClaim
from koordra.kubelet_plugin.selftest.report import allowed_environment

PACKAGES: Final = Path(koordra.__file__).resolve().parents[1]
"""Where Python finds koordra."""
_OF_ALLOCATORS: Final = frozenset(
    {
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "XLA_CLIENT_MEM_FRACTION"),
        *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    }
)
"""Variables that decide what the programs here are to try."""
_OF_THIS_MACHINE: Final = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "JAX_PLATFORMS"),
        *("TRITON_LIBCUDA_PATH", "LD_LIBRARY_PATH"),
    }
)
"""What a container would not have of this machine's variables."""
_SYSTEM: Final = ("/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class Command:
    """A program as it is started here."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Container(Protocol):
    @property
    def kind(self) -> str:
        """`namespace` or `process`."""

    def command(self, claim: AppliedClaim, argv: Sequence[str], settings: Mapping[str, str]) -> Command:
        """How a program runs with the claim's edits. `settings` are variables of the program's own."""


def without_spec(folder: Path, argv: Sequence[str], settings: Mapping[str, str]) -> Command:
    """The program as it would run on this machine without koordra."""
    return Command(tuple(argv), {**_variables(folder, allowed_environment()), **settings})


def _variables(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    given = {name: value for name, value in given.items() if name not in _OF_ALLOCATORS}
    path = [str(PACKAGES), *filter(None, given.get("PYTHONPATH", "").split(":"))]
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **given,
        "PYTHONPATH": ":".join(dict.fromkeys(path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        "CUPY_CACHE_DIR": str(folder / "cache" / "cupy"),
        "CUDA_CACHE_PATH": str(folder / "cache" / "cuda"),
    }


def _in_container(folder: Path) -> dict[str, str]:
    """Without what is this machine's own, and of LD_LIBRARY_PATH without the folders in which it has a
    libcuda."""
    variables = _variables(folder, allowed_environment())
    folders = [
        folder
        for folder in variables.get("LD_LIBRARY_PATH", "").split(":")
        if folder and not (Path(folder) / "libcuda.so.1").exists()
    ]
    kept = {name: value for name, value in variables.items() if name not in _OF_THIS_MACHINE}
    return kept | ({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})


class NamespaceContainer:
    """`folder` is the self test's own, and the same inside; `mount_table` is /proc/self/mountinfo."""

    kind: Final = "namespace"

    def __init__(self, folder: Path, *, mount_table: str | None = None) -> None:
        self._folder = folder
        self._table = Path("/proc/self/mountinfo").read_text() if mount_table is None else mount_table

    def command(self, claim: AppliedClaim, argv: Sequence[str], settings: Mapping[str, str]) -> Command:
        driver = driver_on_host(claim.edits, self._folder)
        variables = _in_container(self._folder)
        plan = {
            "bundle": str(self._folder / "container"),
            "hide": driver,
            "keep": ["/tmp", *kept_mounts(self._table, driver, needed=(*_needed(), argv[0]))],
            "share": str(self._folder),
            "nodes": [[node.path, node.major, node.minor] for node in claim.edits.device_nodes],
            "mounts": [
                [mount.host_path, mount.container_path, list(mount.options)] for mount in claim.edits.mounts
            ],
            "hooks": list(claim.hooks),
            "environment": {**variables, **dict(claim.edits.env), **settings},
            "directory": str(self._folder),
            "argv": list(argv),
        }
        file = self._folder / "plan.json"
        file.write_text(json.dumps(plan))
        return Command((sys.executable, "-I", str(Path(namespace_init.__file__)), str(file)), {})


def driver_on_host(edits: ContainerEdits, folder: Path) -> list[str]:
    """The files of the machine's driver among the spec's mounts: all that are not the self test's own, with
    the files they are links to."""
    own = f"{folder}/"
    files = [mount.host_path for mount in edits.mounts if not mount.host_path.startswith(own)]
    real = [str(Path(path).resolve()) for path in files]
    return list(dict.fromkeys([*files, *real]))


def kept_mounts(table: str, driver: Sequence[str], *, needed: Sequence[str]) -> list[str]:
    """What is mounted below this machine's root and stays in the container: nothing of the system's own
    folders, and no mount that holds the driver, unless the container could not live without it."""
    points = [_unescaped(line.split()[4]) for line in table.splitlines() if len(line.split()) > 4]
    owners = {
        max((point for point in points if _below(file, point)), key=len, default="/") for file in driver
    }
    dropped = {point for point in owners if not any(_below(path, point) for path in needed)}
    return [
        point
        for point in dict.fromkeys(points)
        if point != "/" and not any(_below(point, each) for each in (*_SYSTEM, *dropped))
    ]


def _needed() -> list[str]:
    return ["/usr", "/bin", "/lib", "/etc", sys.executable, sys.prefix, sys.base_prefix, str(PACKAGES)]


def _below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


class ProcessContainer:
    """`folder` is the self test's own."""

    kind: Final = "process"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, claim: AppliedClaim, argv: Sequence[str], settings: Mapping[str, str]) -> Command:
        links, behind = self._folder / "links" / claim.uid, self._folder / "links" / f"{claim.uid}-driver"
        regions = self._folder / "links" / f"{claim.uid}-regions"
        for folder in (links, behind, regions):
            folder.mkdir(parents=True, exist_ok=True)
        for mount in claim.edits.mounts:
            parent, _, name = mount.container_path.rpartition("/")
            if ".so" in name:
                link = (behind if parent == DRIVER_FOLDER else links) / name
                _link(link, mount.host_path)
        if claim.region:
            # What is paid in any region that the limiter finds counts, so it finds this claim's alone.
            _link(regions / claim.uid, claim.region)
        variables = _in_container(self._folder)
        libraries = filter(None, (str(links), variables.get("LD_LIBRARY_PATH", "")))
        limiter = {"KOORDRA_DRIVER_FOLDER": str(behind), "KOORDRA_LIMITER_FOLDER": str(regions)}
        return Command(
            tuple(argv),
            {
                **variables,
                **dict(claim.edits.env),
                "LD_LIBRARY_PATH": ":".join(libraries),
                **(limiter if claim.region else {}),
                # Nothing else keeps a plain process to the claim's cards.
                "CUDA_VISIBLE_DEVICES": claim.gpu.uuid or "",
                **settings,
            },
        )


def _link(link: Path, target: str | Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)
