"""The driver's user-space files: found through the ld cache or in the known folders, never outside the
root."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.discovery.driver_libraries import cached_libraries, driver_files

VERSION = "550.54.15"
X86_64, I386 = 0x0303, 0x0003


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


def install(root: Path, folder: str, *names: str) -> None:
    """Libraries with their soname links."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / folder / f"{name}.{VERSION}").write_text("ELF")
        (root / folder / f"{name}.1").symlink_to(f"{name}.{VERSION}")


def shown(root: Path) -> dict[str, str]:
    """Container path -> path below the root."""
    mounts = driver_files(root, VERSION)
    assert all(mount.options[0] == "ro" for mount in mounts)
    return {mount.container_path: os.path.relpath(mount.host_path, root) for mount in mounts}


@pytest.fixture(autouse=True)
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_libraries_of_the_cache_under_every_name_in_both_folders(tmp_path: Path) -> None:
    install(tmp_path, "opt/driver/lib64", "libcuda.so", "libnvidia-ml.so")
    install(tmp_path, "usr/lib/i386", "libcuda.so")
    (tmp_path / "usr/lib").mkdir(exist_ok=True)
    (tmp_path / "usr/lib/libcudart.so.12").write_text("toolkit")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        ld_cache(
            ("libcuda.so.1", "/opt/driver/lib64/libcuda.so.1", X86_64),
            ("libcuda.so.1", "/usr/lib/i386/libcuda.so.1", I386),
            ("libnvidia-ml.so.1", "/opt/driver/lib64/libnvidia-ml.so.1", X86_64),
            ("libnvidia-old.so.1", "/opt/driver/lib64/libnvidia-old.so.1", X86_64),
            ("libcudart.so.12", "/usr/lib/libcudart.so.12", X86_64),
        )
    )
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").write_text("#!")
    real = f"opt/driver/lib64/libcuda.so.{VERSION}"
    expected = {}
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        for library in ("libcuda.so", "libnvidia-ml.so"):
            for ending in ("1", VERSION):
                expected[f"{folder}/{library}.{ending}"] = f"opt/driver/lib64/{library}.{VERSION}"
    assert shown(tmp_path) == {**expected, "/usr/bin/nvidia-smi": "usr/bin/nvidia-smi"}
    assert expected["/usr/lib64/libcuda.so.1"] == real


def test_known_folders_serve_without_a_cache(tmp_path: Path) -> None:
    install(tmp_path, "usr/lib/x86_64-linux-gnu", "libcuda.so")
    assert shown(tmp_path)["/usr/lib64/libcuda.so.1"] == f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


def test_links_stay_inside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    install(root, "real", "libcuda.so")
    (root / "usr").mkdir()
    (root / "usr/lib64").symlink_to("/real")
    (root / "real/libnvidia-loop.so.1").symlink_to("libnvidia-loop.so.1")
    (root / "real/libnvidia-out.so.1").symlink_to("../../../../../../../../etc/passwd")
    assert shown(root)["/usr/lib64/libcuda.so.1"] == f"real/libcuda.so.{VERSION}"
    assert not [path for path in shown(root).values() if "passwd" in path or "loop" in path]


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    root, linked = tmp_path / "root", tmp_path / "linked"
    install(root, "usr/lib64", "libcuda.so")
    linked.symlink_to(root)
    assert shown(linked) == shown(root) != {}


@pytest.mark.parametrize("version", [None, "", "550.*", "535.129.03"])
def test_no_driver_no_mounts(tmp_path: Path, version: str | None) -> None:
    install(tmp_path, "usr/lib64", "libcuda.so")
    assert driver_files(tmp_path, version) == ()


def test_the_cache_of_this_machine() -> None:
    """Against ldconfig itself."""
    cache = Path("/etc/ld.so.cache")
    ldconfig = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if Path(path).exists()), None)
    if not cache.exists() or ldconfig is None or os.uname().machine != "x86_64":
        pytest.skip("no ld.so.cache of an x86-64 machine here")
    printed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    expected = [
        (line.split(" (")[0].strip(), line.rpartition("=> ")[2])
        for line in printed.splitlines()
        if "=>" in line and "x86-64" in line
    ]
    assert sorted(cached_libraries(cache.read_bytes())) == sorted(expected)


@given(st.binary(max_size=300), st.integers(0, 100))
def test_damaged_caches_are_read_without_harm(noise: bytes, cut: int) -> None:
    cached_libraries(noise)
    good = ld_cache(("libcuda.so.1", "/a/libcuda.so.1", X86_64))
    cached_libraries(good[:cut] + noise)
    assert cached_libraries(b"ld.so-1.7.0\0" + b"\0" * 12 + good) == [("libcuda.so.1", "/a/libcuda.so.1")]
