"""TFLOPS become cores of the card that is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.allocator.devices.gpu_compute import TFLOPS, cores_for
from koordra.api import names

A100 = "NVIDIA A100-SXM4-40GB"


def card(product: str | None, kind: str = "gpu") -> dict[str, Any]:
    return {names.ATTR_TYPE: kind, **({names.ATTR_PRODUCT_NAME: product} if product else {})}


@pytest.mark.parametrize(
    ("product", "tflops", "precision", "cores"),
    [
        (A100, 20, "FP16", 7),
        (A100, 312, "FP16", 100),
        (A100, 19, "FP32", 98),
        ("Tesla T4", 20, "FP16", 31),
        ("NVIDIA H100 PCIe", 378, "TF32", 100),
        ("NVIDIA H100 80GB HBM3", 378, "TF32", 77),
        ("NVIDIA H200 NVL", 60, "FP32", 100),
        ("NVIDIA H200", 60, "FP32", 90),
    ],
)
def test_percent_of_the_card(product: str, tflops: int, precision: str, cores: int) -> None:
    assert cores_for(tflops, precision, card(product)) == cores


@pytest.mark.parametrize(
    ("device", "compute", "why"),
    [
        (card(A100), (313, "FP16"), "313 TFLOPS in FP16: the device has 312"),
        (card(A100), (1, "FP8"), f"none are known of {A100}"),
        (card("NVIDIA A1000"), (1, "FP16"), "none are known of NVIDIA A1000"),
        (card(None), (1, "FP16"), "none are known of a card without a name"),
        (card(A100, "mig"), (1, "FP16"), "has the compute of its profile"),
    ],
)
def test_who_has_none(device: dict[str, Any], compute: tuple[int, str], why: str) -> None:
    found = cores_for(*compute, device)
    assert isinstance(found, str)
    assert why in found


def test_a_model_stands_before_those_whose_name_is_a_part_of_its_own() -> None:
    models = list(TFLOPS)
    for place, model in enumerate(models):
        assert not [other for other in models[:place] if set(other.split("-")) < set(model.split("-"))]
