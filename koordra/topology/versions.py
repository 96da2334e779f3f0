"""Versions as Kubernetes takes them: strict semver 2.0.0, without a leading v or leading zeros.

Driver versions are not semver: ``535.104.05`` has a leading zero, ``525.60`` two parts, ``470.57.02.01`` four, and
``535.129.03-grid`` a vendor's suffix. The first three numbers are kept, so that order is kept; what follows goes into
build metadata, which semver ignores when it compares (as a pre-release it would sort *before* the plain version).
"""

from __future__ import annotations

import re

_VERSION = re.compile(
    r"v?([0-9]{1,9})(?![0-9])(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(.*)", re.ASCII | re.DOTALL
)
_LONGEST = 64


def semver(text: str) -> str | None:
    """``"535.104.05"`` -> ``"535.104.5"``; None for text that does not begin with a number."""
    matched = _VERSION.fullmatch(text.strip())
    if not matched:
        return None
    major, minor, patch, rest = matched.groups()
    version = ".".join(str(int(part or 0)) for part in (major, minor, patch))
    build = re.sub(r"[^0-9A-Za-z-]+", ".", rest).strip(".-")
    full = f"{version}+{build}" if build else version
    return full if len(full) <= _LONGEST else version


def cuda_semver(number: int) -> str:
    """NVML's CUDA version, 1000 x major + 10 x minor: ``12040`` -> ``"12.4.0"``."""
    return f"{number // 1000}.{number % 1000 // 10}.0"
