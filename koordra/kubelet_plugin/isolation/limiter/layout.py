"""The layout of a claim's region: native/limiter/region.h, in Python. A test compares the two, field by field.

What is named here as the policy's or the usage's is the offset of a field in that file; DEVICE and SLOT begin an entry.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from koordra.errors import PrepareError

VERSION: Final = 2
OLDEST: Final = 1
"""Regions of these versions are read; one that is made is of the newest."""
POLICY_MAGIC: Final = int.from_bytes(b"KORPOLY1", "little")
USAGE_MAGIC: Final = int.from_bytes(b"KORRUSG1", "little")
UNLIMITED: Final = (1 << 64) - 1
PLAUSIBLE: Final = 1 << 46
"""No process has so much of one card. A larger figure is a lie of the tenant's; it counts as nothing, here and in the limiter."""
DEVICES_MAX: Final = 16
SLOTS_MAX: Final = 1024
KINDS: Final = ("plain", "managed", "array", "vmm", "pool", "graph", "import", "context")

STRICT: Final = 1

POLICY: Final = struct.Struct("=QIIIIQ40sQ48x")
DEVICE: Final = struct.Struct("=16sQQQII16x")
USAGE: Final = struct.Struct("=QIIQQQQ8xQ")
SLOT: Final = struct.Struct(f"=QIIQQQII16s{DEVICES_MAX * len(KINDS)}Q")
ACCOUNT: Final = struct.Struct("=QQ")

POLICY_BYTES: Final = POLICY.size + DEVICES_MAX * DEVICE.size
DENIED: Final = USAGE.size
BITMAP: Final = DENIED + 8 * DEVICES_MAX
EXPORTS: Final = BITMAP + SLOTS_MAX // 8
ACCOUNTS: Final = EXPORTS + 16 * 256
SLOTS: Final = ACCOUNTS + DEVICES_MAX * SLOTS_MAX * ACCOUNT.size
USAGE_BYTES: Final = SLOTS + SLOTS_MAX * SLOT.size

LIMIT, UNSEEN, CONTEXT = 16, 24, 32
DEVICE_COUNT, SEQUENCE, OUTSIDE = 20, 24, 72
HOST_PID: Final = 40
ENFORCING: Final = 2

_UUID: Final = re.compile(r"(?:GPU-|MIG-)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


def uuid_bytes(uuid: str) -> bytes:
    """Raises PrepareError for what is not the UUID of a GPU or a MIG instance."""
    match = _UUID.fullmatch(uuid)
    if match is None:
        raise PrepareError(f"isolation limiter: {uuid!r} is not the UUID of a GPU or MIG instance")
    return bytes.fromhex(match[1].replace("-", ""))


def uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_spellings(uuid: str) -> tuple[str, ...]:
    """A region does not tell a GPU from a MIG instance; NVML wants to know."""
    text = uuid_text(uuid_bytes(uuid))
    return text, "MIG-" + text.removeprefix("GPU-")
