"""Which cards does CUDA's driver have, how large are they, and is too much refused?

driver_api BEYOND      bytes that the claim must not get
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from koordra.kubelet_plugin.selftest.programs.answer import answer
from koordra.kubelet_plugin.selftest.programs.cuda_driver import MIB, CudaDriver


def ask() -> dict[str, Any]:
    driver = CudaDriver()
    driver.begin()
    version = ctypes.c_int()
    driver.need("cuDriverGetVersion", ctypes.byref(version))
    cards = range(driver.count())
    free, total = driver.memory()
    beyond, address = driver.allocate(int(sys.argv[1]))
    if beyond == 0:
        driver.free(address)
    after, address = driver.allocate(64 * MIB)
    if after == 0:
        driver.need("cuMemcpyHtoD_v2", address, b"\1" * MIB, ctypes.c_size_t(MIB))
        driver.free(address)
    asynchronous, address = driver.allocate_async(64 * MIB)
    if asynchronous == 0:
        driver.free_async(address)
    asynchronous_beyond, address = driver.allocate_async(int(sys.argv[1]))
    if asynchronous_beyond == 0:
        driver.free_async(address)
    return {
        "cudaVersion": version.value,
        "uuids": [driver.uuid(card) for card in cards],
        "names": [driver.name(card) for card in cards],
        "deviceTotal": driver.total(0),
        "free": free,
        "total": total,
        "beyond": beyond,
        "afterwards": after,
        "asynchronous": asynchronous,
        "asynchronousBeyond": asynchronous_beyond,
    }


if __name__ == "__main__":
    answer(ask)
