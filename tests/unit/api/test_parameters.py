"""Opaque parameters: what is accepted is exactly what the schema says, and a mistake is named with its
remedy."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api.opaque import parameters
from koordra.api.opaque.parameters import (
    Enforcement,
    GpuConfig,
    JointAllocation,
    Pairing,
    RdmaConfig,
    RdmaMode,
    Scope,
)
from koordra.errors import InvalidParameters
from tests.unit.api.parameter_schema import schema

VERSION = {"apiVersion": "koordra.io/v1alpha1"}
JOINT = {**VERSION, "kind": "JointAllocation", "scope": "PCIeSwitch"}


def decode(document: object) -> parameters.Parameters:
    return parameters.decode(
        document, object="ResourceClaim a/b", field="spec.devices.config[0].opaque.parameters"
    )


def test_defaults_are_the_strict_ones() -> None:
    assert decode(JOINT) == JointAllocation(Scope.PCIE_SWITCH, Enforcement.REQUIRED, Pairing.PER_DEVICE)


def test_every_field() -> None:
    assert decode(
        {**VERSION, "kind": "GpuConfig", "isolation": "none", "memoryPercent": 30, "priority": 0}
    ) == GpuConfig(isolation="none", memory_percent=30, priority=0)
    assert decode({**VERSION, "kind": "RdmaConfig", "mode": "Exclusive", "memlock": False}) == RdmaConfig(
        RdmaMode.EXCLUSIVE, memlock=False
    )


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({**JOINT, "scoop": 1}, "JointAllocation has no field 'scoop' (did you mean scope?)"),
        ({**JOINT, "scope": "PCIESwitch"}, "'PCIESwitch' is not allowed (did you mean PCIeSwitch?)"),
        ({**VERSION, "kind": "JointAllocation"}, "JointAllocation needs scope"),
        (
            {**VERSION, "kind": "JointAlocation"},
            "there is no kind 'JointAlocation' (did you mean JointAllocation?)",
        ),
        (
            {"apiVersion": "koordra.io/v1", "kind": "GpuConfig"},
            "'koordra.io/v1' is not a version koordra knows",
        ),
        ({**VERSION, "kind": "GpuConfig", "memoryPercent": 0}, "0 is not a whole number from 1 to 100"),
        ({**VERSION, "kind": "GpuConfig", "memoryPercent": True}, "True is not a whole number"),
        ({**VERSION, "kind": "RdmaConfig", "memlock": "yes"}, "'yes' is neither true nor false"),
        ([], "parameters are not an object"),
        ({**VERSION, "kind": ["GpuConfig"]}, "there is no kind ['GpuConfig']"),
    ],
)
def test_mistakes_are_named(document: object, text: str) -> None:
    with pytest.raises(InvalidParameters) as caught:
        decode(document)
    assert text in str(caught.value)
    assert str(caught.value).startswith("ResourceClaim a/b: spec.devices.config[0].opaque.parameters")


json_values: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-1, 101)
    | st.sampled_from(["Required", "PerDevice", "PCIeSwitch", "none", "Hard", "Spread", "Shared", "x"])
)
field_names = st.sampled_from(
    [
        "scope",
        "enforcement",
        "pairing",
        "node",
        "device",
        "isolation",
        "coresPolicy",
        "priority",
        "memoryPercent",
        "tflops",
        "tflopsPrecision",
        "mode",
        "memlock",
        "x",
    ]
)


@given(
    st.sampled_from(["JointAllocation", "PlacementPolicy", "GpuConfig", "RdmaConfig", "Other"]),
    st.dictionaries(field_names, json_values, max_size=4),
)
def test_decoder_and_schema_agree(kind: str, fields: dict[str, Any]) -> None:
    document = {**VERSION, "kind": kind, **fields}
    valid = jsonschema.Draft202012Validator(schema()).is_valid(document)
    try:
        decode(document)
    except InvalidParameters:
        assert not valid
    else:
        assert valid
