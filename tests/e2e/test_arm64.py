"""The limiter and the CDI hook of arm64 are built and run, also where the node is none: with Debian's cross
compiler, which is on /usr for these processes alone, and its qemu."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import CACHE
from tests.e2e.debian import Unavailable, unpacked
from tests.fakes.native import ROOT

pytestmark = pytest.mark.e2e

QEMU_OF = "trixie"
"""The suite whose qemu has openat2."""

IN_ITS_OWN_USR = """
set -e
mount --make-rprivate /
if [ -d "$1/usr" ]; then mount -t overlay overlay -o "lowerdir=$1/usr:/usr" /usr; fi # else the machine has it all
exec sh native/test/arm64 "$2"
"""


@pytest.mark.second_try(reason="qemu writes /proc/self/maps itself, and may leave out a mapping")
@pytest.mark.skipif(os.geteuid() != 0, reason="the cross compiler is put on /usr by a mount")
@pytest.mark.skipif(platform.machine() == "aarch64", reason="`make -C native test` runs it here")
def test_the_limiter_and_the_hook_of_arm64(tmp_path: Path) -> None:
    try:
        compiler = unpacked(CACHE, ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"), needed=True)
        qemu = unpacked(CACHE, ("qemu-user",), suite=QEMU_OF) / "usr" / "bin" / "qemu-aarch64"
    except Unavailable as error:
        pytest.skip(f"no cross compiler, or no qemu, of Debian's: {error}")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", IN_ITS_OWN_USR, "sh", compiler, tmp_path / "out"],
        cwd=ROOT,
        env={**os.environ, "KOORDRA_ARM64_QEMU": f"{qemu} -L /usr/aarch64-linux-gnu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, failed = done.stdout.splitlines()[-1].split(", ")
    assert (int(passed.split()[0]) > 100, failed) == (True, "0 failed")
    assert "not run" not in done.stdout
