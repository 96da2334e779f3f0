"""NVIDIA's classic parameters: the devices that a claim selects are those that the classic driver gave."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from koordra.api import names
from koordra.api.claims import ResourceClaim
from koordra.api.classic.convert import convert
from koordra.api.classic.nvidia_parameters import KOORDRA, NVIDIA, TARGETS
from koordra.api.devices import Attribute, Capacity
from koordra.cel.selectors import DeviceFacts, matches
from koordra.cli.convert import convert_command
from koordra.quantity import parse

CASE = Path(__file__).parent / "cases" / "nvidia.yaml"
GROUP = "gpu.resource.nvidia.com"
CARDS = [
    {
        "productName": product,
        "architecture": architecture,
        "memory": memory,
        "version": version,
        "index": index,
    }
    for index, (product, architecture, memory, version) in enumerate(
        [
            ("NVIDIA A100-SXM4-40GB", "Ampere", "40Gi", "8.0"),
            ("NVIDIA A100 80GB PCIe", "Ampere", "80Gi", "8.0"),
            ("Tesla T4", "Turing", "15Gi", "7.5"),
            ("NVIDIA H100 80GB HBM3", "Hopper", "80Gi", "9.0"),
        ]
    )
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(convert_command, list(arguments))


def test_claims_for_koordra(golden: Callable[[str, str], None]) -> None:
    result = run("-f", str(CASE), "--to", "koordra")
    golden("convert/nvidia-to-koordra.yaml", result.stdout)
    golden("convert/nvidia-to-koordra.notes.txt", result.stderr)
    assert str(result.exception) == "1 object was refused"


def claim_with(kind: str, spec: Any) -> list[dict[str, Any]]:
    ref = {"apiGroup": GROUP, "kind": kind, "name": "p"}
    metadata = {"name": "p", "namespace": "team"}
    return [
        {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec},
        {
            "apiVersion": "resource.k8s.io/v1alpha2",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"resourceClassName": "gpu.nvidia.com", "parametersRef": ref},
        },
    ]


def device(card: Mapping[str, Any], domain: str) -> DeviceFacts:
    attributes = {
        f"{domain}/productName": Attribute("string", card["productName"]),
        f"{domain}/architecture": Attribute("string", card["architecture"]),
        f"{domain}/cudaComputeCapability": Attribute("version", f"{card['version']}.0"),
        f"{domain}/minor": Attribute("int", card["index"]),
    }
    return DeviceFacts(domain, True, attributes, {f"{domain}/memory": Capacity(parse(card["memory"]), "")})


def classic(selector: Mapping[str, Any], card: Mapping[str, Any]) -> bool:
    """As the classic driver's api/utils/selector decides."""
    ((name, value),) = selector.items()
    match name:
        case "andExpression":
            return all(classic(each, card) for each in value)
        case "orExpression":
            return any(classic(each, card) for each in value)
        case "productName" | "architecture":
            pattern = ".*".join(re.escape(part) for part in value.lower().split("*"))
            return re.search(pattern, card[name].lower()) is not None
        case "memory":
            return compared(parse(card["memory"]) - parse(value["value"]), value["operator"])
        case "cudaComputeCapability":
            return compared(Decimal(card["version"]) - Decimal(value["value"]), value["operator"])
        case "index":
            return bool(card["index"] == value)
        case _:
            assert name == "migEnabled"
            return value is False


def compared(difference: Decimal, operator: str) -> bool:
    return {
        "Equals": difference == 0,
        "LessThan": difference < 0,
        "LessThanOrEqualTo": difference <= 0,
        "GreaterThan": difference > 0,
        "GreaterThanOrEqualTo": difference >= 0,
    }[operator]


OPERATOR_NAMES = ("Equals", "LessThan", "LessThanOrEqualTo", "GreaterThan", "GreaterThanOrEqualTo")
OPERATORS = st.sampled_from(OPERATOR_NAMES)


@pytest.mark.parametrize("operator", OPERATOR_NAMES)
@pytest.mark.parametrize(("name", "of"), [("memory", "memory"), ("cudaComputeCapability", "version")])
@pytest.mark.parametrize("target", TARGETS)
def test_an_operator_is_kept_where_the_amounts_are_equal(
    operator: str, name: str, of: str, target: str
) -> None:
    """Drawn values seldom are a card's own, in which `<` and `<=` differ."""
    for card in CARDS:
        _same_selection({name: {"value": card[of], "operator": operator}}, target)


def comparison(*values: str) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({"value": st.sampled_from(values), "operator": OPERATORS})


PROPERTIES = st.one_of(
    st.builds(
        lambda glob: {"productName": glob},
        st.sampled_from(["*a100*", "A100", "tesla*t4", "*80gb*hbm3", "*", "h1.0", "t4"]),
    ),
    st.builds(lambda glob: {"architecture": glob}, st.sampled_from(["ampere", "*ing", "hopper*"])),
    st.builds(lambda value: {"memory": value}, comparison("15Gi", "16G", "40Gi", "80Gi")),
    st.builds(lambda value: {"cudaComputeCapability": value}, comparison("7.5", "8.0", "9.0")),
    st.builds(lambda value: {"index": value}, st.integers(0, 4)),
    st.builds(lambda value: {"migEnabled": value}, st.booleans()),
)
SELECTORS = st.recursive(
    PROPERTIES,
    lambda inner: st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["andExpression", "orExpression"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(SELECTORS, st.sampled_from(TARGETS))
def test_a_selector_selects_what_the_classic_driver_did(selector: dict[str, Any], target: str) -> None:
    if target == NVIDIA and '"index"' in json.dumps(selector):
        return  # published by nobody: refused, below
    _same_selection(selector, target)


def _same_selection(selector: dict[str, Any], target: str) -> None:
    found = convert(claim_with("GpuClaimParameters", {"selector": selector}), target=target)
    before = [card["productName"] for card in CARDS if classic(selector, card)]
    if found.refused:
        assert not before
        return
    (made,) = found.objects
    domain = names.DRIVER if target == KOORDRA else "gpu.nvidia.com"
    (request,) = ResourceClaim.from_dict(made).requests
    expressions = request.alternatives[0].selectors
    after = [
        card["productName"]
        for card in CARDS
        if all(matches(expression, device(card, domain)) for expression in expressions)
    ]
    assert after == before


@pytest.mark.parametrize(
    ("kind", "spec", "target", "told"),
    [
        ("GpuClaimParameters", {"selector": {"index": 0}}, NVIDIA, "gpu.nvidia.com publishes no index"),
        ("GpuClaimParameters", {"selector": {"brand": "tesla"}}, KOORDRA, "koordra publishes no brand"),
        ("GpuClaimParameters", {"selector": {"migEnabled": True}}, NVIDIA, "given out as their instances"),
        ("GpuClaimParameters", {"selector": {}}, NVIDIA, "is not one property"),
        ("GpuClaimParameters", {"selector": {"colour": "green"}}, NVIDIA, "is no property of a selector"),
        (
            "GpuClaimParameters",
            {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"timeSlice": "Long"}}},
            KOORDRA,
            "Long: koordra leaves the length of time slices",
        ),
        (
            "GpuClaimParameters",
            {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}},
            KOORDRA,
            "koordra limits MPS by what the claim asks for",
        ),
        (
            "GpuClaimParameters",
            {"count": 2, "sharing": {"strategy": "MPS"}},
            KOORDRA,
            "count: isolation mps: requested 2 cards, and a process is the client of one MPS daemon",
        ),
        ("MigDeviceClaimParameters", {"profile": "1g"}, NVIDIA, "is no profile of an instance"),
        ("MigDeviceClaimParameters", {"profile": "1g.5gb", "gpuClaimName": "x"}, NVIDIA, "parentUUID"),
        ("ComputeInstanceClaimParameters", {"profile": "1c.2g.10gb"}, NVIDIA, "is no device of its own"),
    ],
)
def test_what_cannot_be_kept_is_refused(kind: str, spec: Any, target: str, told: str) -> None:
    found = convert(claim_with(kind, spec), target=target)
    (note,) = found.refused
    assert told in str(note)
    assert note.remedy
