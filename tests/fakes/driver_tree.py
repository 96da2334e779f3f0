"""A driver of the 580 branch as it lies on a disk: every file that its packages bring, as stubs with the real
names, links, ELF classes and SONAMEs.

The names are those of NVIDIA's runfile 580.105.08 and of the packages made from it: its own .manifest, the
RPM spec files of NVIDIA/yum-packaging-nvidia-driver and negativo17/nvidia-driver, Ubuntu's
nvidia-graphics-drivers-580, and the fabric manager's, IMEX', NSCQ's and NVSDM's packages. Where distributions
differ, the layouts do:

    DEBIAN              Ubuntu's packages: the multi-arch folder, 32-bit libraries in i386-linux-gnu
    RHEL                NVIDIA's RPMs: /usr/lib64, 32-bit libraries in /usr/lib, Vulkan's file named by CPU
    DRIVER_CONTAINER    the GPU Operator's container: a runfile's installation, with its own sockets and /dev

`ABSENT_FOR_CONTAINERS` are files of the tree that no container is to get.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.fakes.driver_homes import VERSION, ld_cache


class Layout(StrEnum):
    DEBIAN = "debian"
    RHEL = "rhel"
    DRIVER_CONTAINER = "driver-container"

    @property
    def libraries(self) -> str:
        return "/usr/lib64" if self is Layout.RHEL else "/usr/lib/x86_64-linux-gnu"

    @property
    def libraries_32(self) -> str:
        return "/usr/lib" if self is Layout.RHEL else "/usr/lib/i386-linux-gnu"


LINKED: Final = {
    "libEGL_nvidia": "0",
    "libGLESv1_CM_nvidia": "1",
    "libGLESv2_nvidia": "2",
    "libGLX_nvidia": "0",
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvcuvid": "1",
    "libnvidia-allocator": "1",
    "libnvidia-cfg": "1",
    "libnvidia-encode": "1",
    "libnvidia-fbc": "1",
    "libnvidia-ml": "1",
    "libnvidia-ngx": "1",
    "libnvidia-nscq": "2",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-sandboxutils": "1",
    "libnvidia-vksc-core": "1",
    "libnvoptix": "1",
    "libnvsdm": "1",
}
"""Libraries of the driver's version whose SONAME is another name, with the SONAME's number."""

UNLINKED: Final = (
    "libnvidia-eglcore",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-gpucomp",
    "libnvidia-gtk3",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-present",
    "libnvidia-rtcore",
    "libnvidia-tls",
    "libnvidia-wayland-client",
)
"""Libraries of the driver's version that are loaded by that name."""

DEVELOPMENT: Final = (
    "libcuda",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-encode",
    "libnvidia-fbc",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-ptxjitcompiler",
    "libnvidia-sandboxutils",
)
"""Those that also have a bare `.so` link."""

OWN_VERSION: Final = {
    "libnvidia-egl-gbm.so.1.1.2": "libnvidia-egl-gbm.so.1",
    "libnvidia-egl-wayland.so.1.1.20": "libnvidia-egl-wayland.so.1",
    "libnvidia-egl-xcb.so.1.0.3": "libnvidia-egl-xcb.so.1",
    "libnvidia-egl-xlib.so.1.0.3": "libnvidia-egl-xlib.so.1",
    "libnvidia-api.so.1": "libnvidia-api.so.1",
    "libnvidia-nvvm70.so.4": "libnvidia-nvvm70.so.4",
    "libEGL.so.1.1.0": "libEGL.so.1",
    "libGL.so.1.7.0": "libGL.so.1",
    "libGLESv1_CM.so.1.2.0": "libGLESv1_CM.so.1",
    "libGLESv2.so.2.1.0": "libGLESv2.so.2",
    "libGLX.so.0": "libGLX.so.0",
    "libGLdispatch.so.0": "libGLdispatch.so.0",
    "libOpenGL.so.0": "libOpenGL.so.0",
    "libOpenCL.so.1.0.0": "libOpenCL.so.1",
}
"""Files whose name does not carry the driver's version, and their SONAMEs."""

LIBRARIES_32: Final = (
    "libcuda",
    "libnvidia-ml",
    "libnvidia-ptxjitcompiler",
    "libGLX_nvidia",
    "libEGL_nvidia",
)

BINARIES: Final = (
    "nvidia-bug-report.sh",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-modprobe",
    "nvidia-ngx-updater",
    "nvidia-pcc",
    "nvidia-persistenced",
    "nvidia-powerd",
    "nvidia-settings",
    "nvidia-sleep.sh",
    "nvidia-smi",
    "nvidia-xconfig",
    "nv-fabricmanager",
    "nvswitch-audit",
)

CONTROL_NODES: Final = {
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (510, 0),
    "nvidia-uvm-tools": (510, 1),
    "nvidia-caps/nvidia-cap1": (236, 1),
    "nvidia-caps/nvidia-cap2": (236, 2),
    "nvidia-caps-imex-channels/channel0": (234, 0),
    "nvidia-nvswitchctl": (195, 253),
    "nvidia-nvswitch0": (511, 0),
    "nvidia-fs0": (235, 0),
    "nvidia-fs1": (235, 1),
    "gdrdrv": (239, 0),
    "infiniband/rdma_cm": (10, 58),
    "infiniband/uverbs0": (231, 192),
}


def build(root: Path, layout: Layout, *, version: str = VERSION) -> None:
    """The driver's files below the root; those of /dev are `add_device_nodes`'."""
    _merged_usr(root)
    _libraries(root, layout, version)
    _graphics_files(root, layout, version)
    for name in BINARIES:
        put(root, f"/usr/bin/{name}", mode=0o4755 if name == "nvidia-modprobe" else 0o755)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        put(root, f"/usr/lib/firmware/nvidia/{version}/{name}")
        put(root, f"/usr/lib/firmware/nvidia/570.86.15/{name}")
    for name in ("rc", "key-documentation"):
        put(root, f"/usr/share/nvidia/nvidia-application-profiles-{version}-{name}")
    put(root, "/usr/share/nvidia/files.d/sandboxutils-filelist.json", b"{}")
    put(root, "/etc/cufile.json", b"{}")
    (root / "run/udev").mkdir(parents=True)
    for name in ("nvidia-persistenced", "nvidia-fabricmanager"):
        (root / "run" / name).mkdir(parents=True)
        os.mknod(root / "run" / name / "socket", stat.S_IFSOCK | 0o666)
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    put(root, "/etc/ld.so.cache", ld_cache(*_cached(layout, version)))


def _merged_usr(root: Path) -> None:
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "var").mkdir()
    (root / "run").mkdir()
    (root / "var/run").symlink_to("/run")


def _libraries(root: Path, layout: Layout, version: str) -> None:
    folder = layout.libraries
    for name, number in LINKED.items():
        put(root, f"{folder}/{name}.so.{version}", shared_object(f"{name}.so.{number}"))
        link(root, f"{folder}/{name}.so.{number}", f"{name}.so.{version}")
    for name in DEVELOPMENT:
        link(root, f"{folder}/{name}.so", f"{name}.so.{LINKED[name]}")
    for name in UNLINKED:
        put(root, f"{folder}/{name}.so.{version}", shared_object(f"{name}.so.{version}"))
    for name, soname in OWN_VERSION.items():
        put(root, f"{folder}/{name}", shared_object(soname))
        if soname != name:
            link(root, f"{folder}/{soname}", name)
    put(root, f"{folder}/vdpau/libvdpau_nvidia.so.{version}", shared_object("libvdpau_nvidia.so.1"))
    link(root, f"{folder}/vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{version}")
    for name in LIBRARIES_32:
        soname = f"{name}.so.{LINKED[name]}"
        put(root, f"{layout.libraries_32}/{name}.so.{version}", shared_object(soname, bits=32))
        link(root, f"{layout.libraries_32}/{soname}", f"{name}.so.{version}")
    put(root, f"{folder}/libcudart.so.12.4.127", shared_object("libcudart.so.12"))
    put(root, f"{folder}/libnvidia-container.so.1.18.0", shared_object("libnvidia-container.so.1"))


def _graphics_files(root: Path, layout: Layout, version: str) -> None:
    rhel, container = layout is Layout.RHEL, layout is Layout.DRIVER_CONTAINER
    drivers, extensions = "/usr/lib/xorg/modules/drivers", f"{layout.libraries}/nvidia/xorg"
    if rhel:
        drivers, extensions = (f"/usr/lib64/xorg/modules/{kind}" for kind in ("drivers", "extensions"))
    put(root, f"{drivers}/nvidia_drv.so", shared_object("nvidia_drv.so"))
    put(root, f"{extensions}/libglxserver_nvidia.so.{version}", shared_object("libglxserver_nvidia.so"))
    link(root, f"{extensions}/libglxserver_nvidia.so", f"libglxserver_nvidia.so.{version}")
    link(root, f"{layout.libraries}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    vulkan = "/etc/vulkan" if container else "/usr/share/vulkan"
    put(root, f"{vulkan}/icd.d/nvidia_icd{'.x86_64' if rhel else ''}.json", b"{}")
    put(root, f"{vulkan}/implicit_layer.d/nvidia_layers.json", b"{}")
    put(root, "/usr/share/vulkansc/icd.d/nvidia_icd.x86_64.json", b"{}")
    put(root, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}")
    put(root, "/usr/share/glvnd/egl_vendor.d/50_mesa.json", b"{}")
    for name in ("15_nvidia_gbm", "10_nvidia_wayland", "20_nvidia_xcb", "20_nvidia_xlib"):
        put(root, f"/usr/share/egl/egl_external_platform.d/{name}.json", b"{}")
    put(root, "/usr/share/nvidia/nvoptix.bin")
    put(root, "/etc/OpenCL/vendors/nvidia.icd")
    xorg = "/etc/X11/xorg.conf.d/10-nvidia.conf"
    put(root, xorg if rhel else "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf")


def _cached(layout: Layout, version: str) -> Iterable[tuple[str, str, int]]:
    """What ldconfig finds in the default folders; it does not look into vdpau/ and nvidia/."""
    folder = layout.libraries
    for name, number in LINKED.items():
        yield f"{name}.so.{number}", f"{folder}/{name}.so.{number}", X86_64
    for name in DEVELOPMENT:
        yield f"{name}.so", f"{folder}/{name}.so", X86_64
    for name in UNLINKED:
        yield f"{name}.so.{version}", f"{folder}/{name}.so.{version}", X86_64
    for soname in OWN_VERSION.values():
        yield soname, f"{folder}/{soname}", X86_64
    for name in LIBRARIES_32:
        soname = f"{name}.so.{LINKED[name]}"
        yield soname, f"{layout.libraries_32}/{soname}", I386


def add_device_nodes(
    root: Path, *, bus_ids: Iterable[str], mode: int = 0o666, gid: int = 0, control: bool = True
) -> None:
    """/dev below the root: a card and its DRM nodes for each PCI address, with their entries in sysfs; and
    the nodes of the whole driver. Where mknod is not allowed, stand-ins with their numbers."""
    for minor, bus_id in enumerate(bus_ids):
        device_node(root, f"/dev/nvidia{minor}", 195, minor, mode=mode, gid=gid)
        for kind, name, number in (
            ("card", f"card{minor + 1}", minor + 1),
            ("render", f"renderD{128 + minor}", 128 + minor),
        ):
            device_node(root, f"/dev/dri/{name}", 226, number, mode=0o660, gid=44 if kind == "card" else 109)
            link(root, f"/dev/dri/by-path/pci-{bus_id}-{kind}", f"../{name}")
            put(root, f"/sys/bus/pci/devices/{bus_id}/drm/{name}/dev", f"226:{number}\n".encode())
    for path, (major, number) in CONTROL_NODES.items() if control else ():
        device_node(root, f"/dev/{path}", major, number, mode=mode, gid=gid)


def device_node(root: Path, path: str, major: int, minor: int, *, mode: int = 0o666, gid: int = 0) -> None:
    node = root / path.lstrip("/")
    node.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(node, stat.S_IFCHR, os.makedev(major, minor))
    except PermissionError:
        node.write_text(f"c {major}:{minor}\n", encoding="ascii")
    else:
        os.chown(node, 0, gid)
    node.chmod(mode)


def put(root: Path, path: str, content: bytes = b"stub", *, mode: int = 0o644) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def link(root: Path, path: str, target: str) -> None:
    made = root / path.lstrip("/")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.symlink_to(target)


X86_64: Final = 0x0303
I386: Final = 0x0003
_X86_64_MACHINE, _I386_MACHINE = 62, 3


def shared_object(soname: str, *, bits: int = 64) -> bytes:
    """The smallest ELF shared object with this SONAME: header, strings, dynamic section, section table."""
    if bits == 32:
        return b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHI", 3, _I386_MACHINE, 1) + bytes(28)
    strings = b"\0" + soname.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    dynamic = struct.pack("<qQqQ", 14, 1, 0, 0)  # DT_SONAME at 1, DT_NULL
    dynamic_at, sections_at = 64 + len(strings), 64 + len(strings) + len(dynamic)
    header = struct.pack("<HHIQQQIHHHHHH", 3, _X86_64_MACHINE, 1, 0, 0, sections_at, 0, 64, 56, 0, 64, 3, 0)
    sections = (
        bytes(64)
        + struct.pack("<IIQQQQIIQQ", 0, 3, 2, 0, 64, len(strings), 0, 0, 1, 0)  # SHT_STRTAB
        + struct.pack("<IIQQQQIIQQ", 0, 6, 2, 0, dynamic_at, len(dynamic), 1, 0, 8, 16)  # SHT_DYNAMIC
    )
    return b"\x7fELF\x02\x01\x01" + bytes(9) + header + strings + dynamic + sections
