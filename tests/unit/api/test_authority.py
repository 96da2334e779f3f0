"""What a claim may say: every field of every kind, in every place where somebody who is not the operator can
write it; the documentation lists the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from koordra.api.opaque.authority import CAPABILITIES, CLAIMS_MAY_SAY, NETWORK
from koordra.api.opaque.driver_capabilities import WORDS
from koordra.api.opaque.parameters import API_VERSION, KINDS, Parameters, decode
from koordra.api.opaque.rdma_network import RdmaNetwork
from koordra.api.reader import snake_case
from koordra.errors import InvalidParameters

PAGE = Path(__file__).parents[3] / "docs" / "isolation.md"
BEGIN = "<!-- what claims may say: pytest --regen tests/unit/api/test_authority.py -->\n"
END = "<!-- end -->"

VALUES: Mapping[str, Mapping[str, Any]] = {
    "JointAllocation": {"scope": "Node", "enforcement": "Required", "pairing": "PerDevice"},
    "PlacementPolicy": {"node": "Binpack", "device": "Spread"},
    "GpuConfig": {
        "isolation": "limiter",
        "coresPolicy": "Hard",
        "priority": 1,
        "memoryPercent": 50,
        "tflops": 20,
        "tflopsPrecision": "FP16",
        "exclusive": True,
        "partition": "Honor",
        "numaAffinity": True,
        "timeSlice": "Short",
        "driverCapabilities": ["compute"],
        "allowedIsolation": ["limiter"],
        "defaultIsolation": "limiter",
        "resize": {"memory": {"min": "1Gi", "max": "2Gi"}},
    },
    "RdmaConfig": {
        "mode": "Shared",
        "memlock": False,
        "network": {"mtu": 1400},
        "fabric": {"trafficClass": 106},
    },
    "ImexConfig": {"channels": "All"},
    NETWORK: {
        "interface": "rail0",
        "addresses": ["192.168.10.5/24"],
        "pool": "rails",
        "routes": [{"destination": "10.0.0.0/8"}],
        "mtu": 1400,
        "vlan": 7,
        "guid": "0011:2233:4455:6677",
        "pkey": "0x8001",
        "attachment": {"name": "rail"},
    },
    CAPABILITIES: dict.fromkeys(WORDS),
}
"""Every field, with a value that is right."""
EVERY = [(of, name) for of, values in VALUES.items() for name in values]
OPERATORS = [(of, name) for of, name in EVERY if name not in CLAIMS_MAY_SAY[of]]


def document(of: str, name: str) -> dict[str, Any]:
    """Parameters that say one field, or one word."""
    kind, _, field = of.partition(".")
    value = VALUES[of][name]
    said = {name: value} if not field else {field: {name: value} if of == NETWORK else [name]}
    needed = {"scope": "Node"} if kind == "JointAllocation" else {}
    return {"apiVersion": API_VERSION, "kind": kind, **needed, **said}


def decoded(of: str, name: str, *, in_claim: bool) -> Parameters:
    return decode(document(of, name), object="x", field="p", in_claim=in_claim)


def test_every_field_is_tried_here() -> None:
    for kind, (_, known) in KINDS.items():
        assert VALUES[kind].keys() == known.keys()
    names = {snake_case(name): name for name in VALUES[NETWORK]}
    assert names.keys() == {each.name for each in fields(RdmaNetwork)}
    assert all(set(said) <= VALUES[of].keys() for of, said in CLAIMS_MAY_SAY.items())
    assert CLAIMS_MAY_SAY.keys() == VALUES.keys()


def test_what_is_the_operators() -> None:
    """Written down a second time: a field changes sides only where both are changed."""
    assert [
        ("GpuConfig", "allowedIsolation"),
        ("GpuConfig", "defaultIsolation"),
        ("GpuConfig", "resize"),
        ("RdmaConfig", "fabric"),
        ("ImexConfig", "channels"),
        *((NETWORK, name) for name in ("addresses", "pool", "routes", "vlan", "guid", "pkey", "attachment")),
        (CAPABILITIES, "imex"),
    ] == OPERATORS


@pytest.mark.parametrize(("of", "name"), EVERY)
def test_a_class_says_everything_and_a_claim_what_is_listed(of: str, name: str) -> None:
    of_class = decoded(of, name, in_claim=False)
    if name in CLAIMS_MAY_SAY[of]:
        assert decoded(of, name, in_claim=True) == of_class
        return
    with pytest.raises(InvalidParameters) as caught:
        decoded(of, name, in_claim=True)
    text, place = str(caught.value), of.partition(".")[2]
    assert f"{name}: is for the operator" in text or f"{place}[0]: {name} is for the operator" in text
    assert f"which may say {', '.join(CLAIMS_MAY_SAY[of])}" in text


@pytest.mark.parametrize("spelled", ["VLAN", "Vlan", "vlan ", "\uff56lan", "vla\u200bn", "v\u043ban"])
def test_a_field_is_no_other_field_by_another_spelling(spelled: str) -> None:
    """What is not a known field is refused as unknown, so that there is nothing to fold or trim."""
    body = {"apiVersion": API_VERSION, "kind": "RdmaConfig", "network": {spelled: 7}}
    for in_claim in (True, False):
        with pytest.raises(InvalidParameters):
            decode(body, object="x", field="p", in_claim=in_claim)


@pytest.mark.parametrize(
    "version", ["koordra.io/v1", "koordra.io/v1alpha2", "KOORDRA.IO/v1alpha1", "v1alpha1", "", None, ["x"], 1]
)
@pytest.mark.parametrize("in_claim", [True, False])
def test_parameters_of_another_version_are_no_way_round(version: object, in_claim: bool) -> None:
    body = {"apiVersion": version, "kind": "GpuConfig", "allowedIsolation": ["none"]}
    with pytest.raises(InvalidParameters):
        decode(body, object="x", field="p", in_claim=in_claim)


def table() -> str:
    lines = ["| of | a claim may say | the operator alone |", "|---|---|---|"]
    for of, values in VALUES.items():
        sides = [[n for n in values if (n in CLAIMS_MAY_SAY[of]) is mine] for mine in (True, False)]
        cells = [", ".join(f"`{name}`" for name in side) for side in sides]
        lines.append(f"| `{of}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def test_the_documentation_lists_the_same(request: pytest.FixtureRequest) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    listed, _, after = rest.partition(END)
    if request.config.getoption("--regen"):
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}")
        return
    assert listed == table(), "make it anew: pytest --regen tests/unit/api/test_authority.py"
