"""Names and versions as they are published."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.topology.product_names import cuda_semver, gpu_model, nic_model, semver

# The pattern of https://semver.org, section "suggested regular expression".
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("550.54.15", "550.54.15"),
        ("535.104.05", "535.104.5"),
        ("535.129.03", "535.129.3"),
        ("470.57.02", "470.57.2"),
        ("470.82.01", "470.82.1"),
        ("525.60.13", "525.60.13"),
        ("560.35.03", "560.35.3"),
        ("570.00", "570.0.0"),
        ("580.65.06", "580.65.6"),
        ("390.157", "390.157.0"),
        ("418.226.00", "418.226.0"),
        ("396.37.01.02", "396.37.1+02"),
        ("535.161.07-grid", "535.161.7+grid"),
        ("550.90.05 (open)", "550.90.5+open"),
        ("9.0", "9.0.0"),
        ("v1.2.3", "1.2.3"),
        ("12345678901.2", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_driver_versions(text: str, expected: str | None) -> None:
    assert semver(text) == expected


@given(st.text(max_size=100))
def test_whatever_comes_out_is_semver_and_fits(text: str) -> None:
    version = semver(text)
    assert version is None or (SEMVER.fullmatch(version) and len(version) <= 64)


@given(st.lists(st.tuples(*[st.integers(0, 999)] * 3), min_size=2, max_size=2))
def test_order_of_versions_is_kept(versions: list[tuple[int, int, int]]) -> None:
    def numbers(version: str | None) -> list[int]:
        return [int(part) for part in (version or "").split("+")[0].split(".")]

    written = [semver(f"{major}.{minor:02}.{patch:02}") for major, minor, patch in versions]
    assert (numbers(written[0]) < numbers(written[1])) == (versions[0] < versions[1])


def test_cuda_versions() -> None:
    assert [cuda_semver(number) for number in (12040, 11080, 13000)] == ["12.4.0", "11.8.0", "13.0.0"]


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
    ],
)
def test_gpu_models(product: str, model: str) -> None:
    assert gpu_model(product) == model


def test_nic_models() -> None:
    assert nic_model("15b3", "1021") == "ConnectX-7"
    assert nic_model("15b3", "ffff") is None
    assert nic_model(None, None) is None
