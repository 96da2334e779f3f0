"""What the image of arm64 needs is there, also where the node is none. The limiter and the CDI hook are built
and run: with Debian's cross compiler, which is on /usr for these processes alone, and its qemu."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
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


@pytest.mark.slow
def test_every_package_of_the_image_has_a_wheel_of_arm64_among_its_hashes(tmp_path: Path) -> None:
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    (version,) = re.findall(r"^ARG BASE=\S+python:(\d+\.\d+)", recipe, re.MULTILINE)
    lock = ROOT / "requirements" / "image.txt"
    get = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    get += ["--require-hashes", "--dest", str(tmp_path), "--python-version", version]
    arm64 = [f"--platform=manylinux{glibc}_aarch64" for glibc in ("_2_28", "_2_17", "2014")]
    reached = tmp_path / "one.txt"
    reached.write_text(re.findall(r"^click==.*(?:\n    .*)*", lock.read_text(), re.MULTILINE)[0])
    if subprocess.run([*get, "-r", str(reached)], capture_output=True, check=False).returncode:
        pytest.skip("no package index is in reach")
    done = subprocess.run([*get, *arm64, "-r", str(lock)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
