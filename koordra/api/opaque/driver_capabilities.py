"""`GpuConfig.driverCapabilities`: which parts of NVIDIA's driver a container gets with its GPUs.

    driverCapabilities: [compute, utility]

The words are those of NVIDIA's container toolkit (NVIDIA_DRIVER_CAPABILITIES). Under CDI the toolkit, and
NVIDIA's DRA driver with it, give all parts whatever that variable says; so does koordra where nothing is
asked. A share whose memory is limited gets what is counted: COUNTED. Programs that draw (Vulkan, EGL) take
memory past the limiter, which stands in front of CUDA alone; who wants that says so.

Three more words are never part of `all`, as they bring what is not the card's own. They come on top: a list
of nothing else leaves the rest as it is where nothing is asked.

    gdrcopy    /dev/gdrdrv: GPU memory mapped by the processor
    gds        /dev/nvidia-fs*, /run/udev and /etc/cufile.json: GPUDirect Storage
    imex       channel 0 of the node's IMEX domain. Whoever holds it can map the memory that another holder on
               any node of the domain exports, so that only the operator gives it, in a DeviceClass

Words of the toolkit that stand for something else here are refused with the way to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from koordra.api.opaque.authority import CAPABILITIES, refuse_operators
from koordra.api.reader import Reader


class DriverCapability(StrEnum):
    """COMPUTE: CUDA and OpenCL. UTILITY: NVML and nvidia-smi. GRAPHICS: OpenGL, EGL, Vulkan, OptiX. VIDEO:
    encoding, decoding, optical flow. DISPLAY: modules of an X server. NGX: DLSS."""

    COMPUTE = "compute"
    UTILITY = "utility"
    GRAPHICS = "graphics"
    VIDEO = "video"
    DISPLAY = "display"
    NGX = "ngx"
    GDRCOPY = "gdrcopy"
    GDS = "gds"
    IMEX = "imex"


DriverCapabilities = frozenset[DriverCapability]

OPT_IN: Final[DriverCapabilities] = frozenset(
    {DriverCapability.GDRCOPY, DriverCapability.GDS, DriverCapability.IMEX}
)
ALL: Final[DriverCapabilities] = frozenset(DriverCapability) - OPT_IN
COUNTED: Final[DriverCapabilities] = frozenset(
    {DriverCapability.COMPUTE, DriverCapability.UTILITY, DriverCapability.VIDEO}
)
"""What a share gets whose memory is limited."""
DRAWING: Final[DriverCapabilities] = frozenset({DriverCapability.GRAPHICS, DriverCapability.DISPLAY})
"""Those that need the card's DRM nodes."""


def chosen(asked: DriverCapabilities, *, limited: bool) -> DriverCapabilities:
    """What holders of a GPU get; `limited`: it is a share whose memory is limited."""
    return (asked - OPT_IN or (COUNTED if limited else ALL)) | (asked & OPT_IN)


_ALL: Final = "all"
WORDS: Final = (_ALL, *DriverCapability)
_REFUSED: Final[Mapping[str, str]] = {
    "compat32": "32-bit libraries are not given to containers; use 64-bit programs",
    "mofed": "NICs are devices of their own; ask for them with a request of the class nic.koordra.io",
    "nvswitch": "NVSwitches are the fabric manager's; no claim holds them",
}


def decode_capabilities(value: object, read: Reader, *, in_claim: bool) -> DriverCapabilities:
    """Raises InvalidParameters that names the entry and what may stand there."""
    if not isinstance(value, list) or not value:
        raise read.wrong(f"{value!r} is no list of words", "write [compute, utility]", at=FIELD)
    found: set[DriverCapability] = set()
    for index, word in enumerate(value):
        at = f"{FIELD}[{index}]"
        if isinstance(word, str) and word in _REFUSED:
            raise read.wrong(f"{word} is not given: {_REFUSED[word]}", at=at)
        if word not in WORDS:
            raise read.wrong(f"{word!r} is not allowed", f"use one of {', '.join(WORDS)}", at=at)
        if in_claim:
            refuse_operators(read, [word], of=CAPABILITIES, at=at)
        found |= ALL if word == _ALL else {DriverCapability(word)}
    return frozenset(found)


FIELD: Final = "driverCapabilities"
