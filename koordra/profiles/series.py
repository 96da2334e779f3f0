"""What is measured of a pod, and in which unit: whole numbers throughout, so that sums are exact whatever
their order."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MIB: Final = 1 << 20


class Series(StrEnum):
    """By the name that documents have.

    GPU is how many GPUs were busy, with whatever ran on them, of those that the pod has: 4000 is four that
    never rest. SM is for how much of the time kernels of the pod itself ran on one GPU, that on which they
    ran longest, by the driver's samples of its processes: on a GPU of its own 1000 is as much as GPU's, of a
    shared one this is the pod's part. Both in thousandths of a GPU. GPU_MEMORY is what the pod has on one
    GPU, that on which it has most; it and MEMORY in bytes, CPU in thousandths of a processor; RDMA is what
    was received and sent together, in bytes a second. So shares, which are alike on every GPU of a pod, are
    measured by the GPU that needs most, and GPUs that idle are seen all the same."""

    GPU = "gpu"
    SM = "sm"
    GPU_MEMORY = "gpuMemory"
    CPU = "cpu"
    MEMORY = "memory"
    RDMA = "rdma"

    @property
    def resolution(self) -> int:
        """Values that differ by less are not told apart by deciles."""
        return {Series.GPU_MEMORY: MIB, Series.MEMORY: MIB, Series.RDMA: 1000}.get(self, 1)
