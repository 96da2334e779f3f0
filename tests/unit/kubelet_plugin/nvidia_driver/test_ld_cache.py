"""Reading an ld.so.cache, against ldconfig itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.nvidia_driver.ld_cache import cached_libraries
from tests.fakes.driver_homes import ld_cache
from tests.fakes.driver_tree import I386, X86_64


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
    good = ld_cache(("libcuda.so.1", "/a/libcuda.so.1", X86_64), ("libcuda.so.1", "/b", I386))
    cached_libraries(good[:cut] + noise)
    assert cached_libraries(b"ld.so-1.7.0\0" + b"\0" * 12 + good) == [("libcuda.so.1", "/a/libcuda.so.1")]
