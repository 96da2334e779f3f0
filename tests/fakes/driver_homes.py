"""Where NVIDIA's driver lives on the usual kinds of nodes, as small trees: what each kind has where.

A tree has the libraries that tell a driver (libcuda, libnvidia-ml) with their links, nvidia-smi, and the
marks by which the kind of node is known.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

VERSION: Final = "580.105.08"
MULTI_ARCH: Final = f"usr/lib/{os.uname().machine}-linux-gnu"
_FLAGS: Final = {"x86_64": 0x0303, "aarch64": 0x0A03}


def ld_cache(*entries: tuple[str, str, int]) -> bytes:
    """An ld.so.cache of glibc 2.32 or later with (soname, path, flags)."""
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for name, path, flags in entries:
        offsets = []
        for text in (name, path):
            offsets.append(start + len(strings))
            strings += text.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, *offsets, 0, 0)
    header = b"glibc-ld.so.cache1.1" + struct.pack("=IIBxxxIIII", len(entries), len(strings), 2, 0, 0, 0, 0)
    return header + table + strings


def libraries(folder: Path, version: str = VERSION) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (folder / f"{name}.{version}").write_bytes(b"\x7fELF\x02")
        (folder / f"{name}.1").unlink(missing_ok=True)
        (folder / f"{name}.1").symlink_to(f"{name}.{version}")


def program(folder: Path, name: str = "nvidia-smi") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!")
    (folder / name).chmod(0o755)


def cached(root: Path, folder: str) -> None:
    """The root's ld.so.cache has the libraries of this folder."""
    flags = _FLAGS[os.uname().machine]
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.cache").write_bytes(
        ld_cache(*((name, f"/{folder}/{name}", flags) for name in ("libcuda.so.1", "libnvidia-ml.so.1")))
    )


def module(host: Path, version: str = VERSION) -> None:
    """The kernel module is loaded."""
    folder = host / "sys/module/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version").write_text(f"{version}\n")


def device_nodes(dev: Path) -> None:
    """Stand-ins, as machine_root.py reads them."""
    dev.mkdir(parents=True, exist_ok=True)
    numbers = {
        "nvidiactl": (195, 255),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
        "nvidia0": (195, 0),
    }
    for name, (major, minor) in numbers.items():
        (dev / name).write_text(f"c {major}:{minor}")


def debian(host: Path) -> None:
    libraries(host / MULTI_ARCH)
    program(host / "usr/bin")


def debian_alternatives(host: Path) -> None:
    """Debian's own packages: the driver's libraries are chosen by links."""
    libraries(host / MULTI_ARCH / "nvidia/current")
    program(host / "usr/lib/nvidia/current")
    (host / "usr/bin").mkdir(parents=True, exist_ok=True)
    (host / "usr/bin/nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")


def rhel(host: Path) -> None:
    libraries(host / "usr/lib64")
    program(host / "usr/bin")
    (host / "lib64").symlink_to("usr/lib64")


def driver_container(host: Path) -> None:
    root = host / "run/nvidia/driver"
    libraries(root / MULTI_ARCH)
    program(root / "usr/bin")
    device_nodes(root / "dev")


def driver_container_said(host: Path) -> None:
    """With the GPU Operator's verdict, after the root was moved by its values."""
    root = host / "opt/driver"
    libraries(root / MULTI_ARCH)
    program(root / "usr/bin")
    device_nodes(root / "dev")
    ready = host / "run/nvidia/validations/driver-ready"
    ready.parent.mkdir(parents=True)
    ready.write_text(
        "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/opt/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
        "NVIDIA_DEV_ROOT=/opt/driver\nDEV_ROOT_CTR_PATH=/driver-root\n"
    )


def cos(host: Path) -> None:
    root = host / "home/kubernetes/bin/nvidia"
    libraries(root / "lib64")
    program(root / "bin")
    (root / "vulkan/icd.d").mkdir(parents=True)
    (root / "vulkan/icd.d/nvidia_icd.json").write_text("{}")


def usr_local_nvidia(host: Path) -> None:
    root = host / "usr/local/nvidia"
    libraries(root / "lib64")
    program(root / "bin")


def talos(host: Path) -> None:
    libraries(host / "usr/local/glibc/usr/lib")
    program(host / "usr/local/bin")


def talos_cached(host: Path) -> None:
    libraries(host / "usr/local/lib")
    cached(host, "usr/local/lib")
    program(host / "usr/local/bin")


def bottlerocket(host: Path) -> None:
    libraries(host / "usr/lib/nvidia/tesla")
    cached(host, "usr/lib/nvidia/tesla")
    program(host / "usr/libexec/nvidia/tesla/bin")


def flatcar(host: Path) -> None:
    libraries(host / "usr/lib64")
    program(host / "opt/bin")


def cached_elsewhere(host: Path) -> None:
    """A folder that only the loader's cache names."""
    libraries(host / "opt/vendor/lib")
    cached(host, "opt/vendor/lib")
    program(host / "usr/bin")


HOMES: Final[dict[str, tuple[Callable[[Path], None], str, str]]] = {
    "Debian or Ubuntu": (debian, "/", MULTI_ARCH),
    "Debian's alternatives": (debian_alternatives, "/", f"{MULTI_ARCH}/nvidia/current"),
    "RHEL, Amazon Linux or SUSE": (rhel, "/", "usr/lib64"),
    "driver container": (driver_container, "/run/nvidia/driver", MULTI_ARCH),
    "driver container that the GPU Operator names": (driver_container_said, "/opt/driver", MULTI_ARCH),
    "Container-Optimized OS": (cos, "/home/kubernetes/bin/nvidia", "lib64"),
    "/usr/local/nvidia": (usr_local_nvidia, "/usr/local/nvidia", "lib64"),
    "Talos": (talos, "/", "usr/local/glibc/usr/lib"),
    "Talos with a cache": (talos_cached, "/", "usr/local/lib"),
    "Bottlerocket": (bottlerocket, "/", "usr/lib/nvidia/tesla"),
    "Flatcar": (flatcar, "/", "usr/lib64"),
    "a folder of the loader's cache": (cached_elsewhere, "/", "opt/vendor/lib"),
}
"""Kind of node -> what builds it, the driver's root on the host, the folder of its libraries below it."""
