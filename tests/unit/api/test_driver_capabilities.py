"""`driverCapabilities`: the toolkit's words, what each list comes to, and who may say what."""

from __future__ import annotations

import pytest

from koordra.api.opaque import parameters
from koordra.api.opaque.driver_capabilities import ALL, COUNTED, DriverCapability, chosen
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import InvalidParameters

COMPUTE, UTILITY, GDS, IMEX = (
    DriverCapability.COMPUTE,
    DriverCapability.UTILITY,
    DriverCapability.GDS,
    DriverCapability.IMEX,
)


def decode(words: object, *, in_claim: bool = True) -> frozenset[DriverCapability]:
    document = {"apiVersion": parameters.API_VERSION, "kind": "GpuConfig", "driverCapabilities": words}
    found = parameters.decode(document, object="ResourceClaim a/b", field="parameters", in_claim=in_claim)
    assert isinstance(found, GpuConfig)
    assert found.driver_capabilities is not None
    return found.driver_capabilities


def test_words_of_the_toolkit() -> None:
    assert decode(["compute", "utility"]) == {COMPUTE, UTILITY}
    assert decode(["all"]) == ALL == frozenset(map(DriverCapability, _TOOLKIT))
    assert decode(["all", "gds"]) == ALL | {GDS}


_TOOLKIT = "compute", "utility", "graphics", "video", "display", "ngx"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("compute,utility", "is no list of words; write [compute, utility]"),
        ([], "is no list of words"),
        (["compute", "cuda"], "driverCapabilities[1]: 'cuda' is not allowed; use one of all, compute"),
        (["compat32"], "32-bit libraries are not given"),
        (["mofed"], "ask for them with a request of"),
        (["nvswitch"], "NVSwitches are the fabric manager's"),
        (["imex"], "imex is for the operator to say, in a DeviceClass"),
    ],
)
def test_what_is_refused_is_named_with_the_way_to_it(words: object, text: str) -> None:
    with pytest.raises(InvalidParameters) as raised:
        decode(words)
    assert text in str(raised.value)
    assert "driverCapabilities" in str(raised.value)


def test_only_the_operator_gives_imex() -> None:
    assert decode(["imex"], in_claim=False) == {IMEX}


def test_what_a_container_gets() -> None:
    assert chosen(frozenset(), limited=False) == ALL
    assert chosen(frozenset(), limited=True) == COUNTED
    assert chosen(frozenset({COMPUTE}), limited=True) == {COMPUTE}
    assert chosen(frozenset({GDS}), limited=False) == ALL | {GDS}
    assert chosen(frozenset({GDS, UTILITY}), limited=False) == {GDS, UTILITY}
