"""`GpuConfig.tflopsPrecision`."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """Of the numbers that TFLOPS count: FP64 and FP32 without tensor cores, the others with them, dense."""

    FP64 = "FP64"
    FP32 = "FP32"
    TF32 = "TF32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"
