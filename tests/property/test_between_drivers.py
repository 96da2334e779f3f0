"""Claims of NVIDIA's DRA driver and of dranet, to koordra and back: whatever is not refused selects the same
devices for each request, and gives them to containers in the same way, in each of the three forms.

The oracle reads claims as the drivers do (GetOpaqueDeviceConfigs and validateDeviceConfigType of NVIDIA's,
the precedence of koordra's parameters) and knows nothing of the conversion: made-up cards and NICs are
published in the words of each driver, and CEL decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from koordra.api.classic.convert import convert
from koordra.api.classic.driver_words import BROUGHT, DRANET
from koordra.api.classic.nvidia_parameters import KOORDRA, NVIDIA
from koordra.api.devices import Attribute, Capacity
from koordra.cel.selectors import DeviceFacts, matches
from koordra.errors import InvalidInput

Object = dict[str, Any]
NVIDIAS, KOORDRAS, DRANETS = "gpu.nvidia.com", "koordra.io", "dra.net"


@dataclass(frozen=True)
class Card:
    """A whole card, or an instance of it."""

    uuid: str
    product: str
    memory: int
    parent: str = ""
    profile: str = ""

    @property
    def sort(self) -> str:
        return "mig" if self.profile else "gpu"


@dataclass(frozen=True)
class Nic:
    name: str
    rdma: str
    numa: int
    is_vf: bool


CARDS: Final = (
    Card("GPU-1", "NVIDIA H100 80GB HBM3", 80),
    Card("GPU-2", "NVIDIA A100-SXM4-40GB", 40),
    Card("MIG-1", "NVIDIA A100-SXM4-40GB", 5, "GPU-3", "1g.5gb"),
    Card("MIG-2", "NVIDIA A100-SXM4-40GB", 10, "GPU-3", "2g.10gb"),
)
NICS: Final = (
    Nic("eth0", "mlx5_0", 0, False),
    Nic("eth1", "mlx5_1", 1, False),
    Nic("eth2", "mlx5_2", 1, True),
)


def published(device: Card | Nic, driver: str) -> DeviceFacts:
    """In the words of a driver."""
    found: dict[str, Any]
    if isinstance(device, Card):
        found = {"type": device.sort, "uuid": device.uuid, "productName": device.product}
        found |= {"profile": device.profile} if device.profile else {}
    elif driver == DRANETS:
        found = {"ifName": device.name, "rdmaDevice": device.rdma, "numaNode": device.numa}
        found |= {"rdma": True, "virtual": False, "isSriovVf": device.is_vf}
    else:
        kind = "vf" if device.is_vf else "nic"
        found = {"type": kind, "netdev": device.name, "ibDevice": device.rdma, "numaNode": device.numa}
    found |= {"allocator": "scheduler"} if driver == KOORDRAS else {}
    kinds = {bool: "bool", int: "int", str: "string"}
    attributes = {f"{driver}/{name}": Attribute(kinds[type(value)], value) for name, value in found.items()}
    memory = (
        {f"{driver}/memory": Capacity(Decimal(device.memory << 30), f"{device.memory}Gi")}
        if isinstance(device, Card)
        else {}
    )
    return DeviceFacts(driver, False, attributes, memory)


CLASSES: Final = {
    "gpu.nvidia.com": 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"',
    "mig.nvidia.com": 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"',
    "gpu.koordra.io": 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "gpu"',
    "mig.koordra.io": 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "mig"',
    "nic.koordra.io": 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "nic"',
    "vf.koordra.io": 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "vf"',
    **BROUGHT,
}
"""As the drivers' charts bring them."""


def selected(claim: Object, own: Object, driver: str) -> dict[str, frozenset[int]]:
    """Request -> numbers of the devices that it may get. `own`: the DeviceClass of the user's."""
    everything = (*CARDS, *NICS)
    spec = own["spec"] if own else {}
    of_own = [each["cel"]["expression"] for each in spec.get("selectors") or ()]
    found = {}
    for name, request in asked(claim):
        called = request["deviceClassName"]
        wanted = [CLASSES[called]] if called in CLASSES else of_own
        wanted = [*wanted, *(each["cel"]["expression"] for each in request.get("selectors") or ())]
        found[name] = frozenset(
            number
            for number, device in enumerate(everything)
            if isinstance(device, Card) is (driver != DRANETS) or driver == KOORDRAS
            if all(holds(each, published(device, driver)) for each in wanted)
        )
    return found


def holds(expression: str, facts: DeviceFacts) -> bool:
    try:
        return matches(expression, facts)
    except InvalidInput:
        return False


def asked(claim: Object) -> list[tuple[str, Object]]:
    found: list[tuple[str, Object]] = []
    for request in claim["spec"]["devices"]["requests"]:
        if exactly := request.get("exactly"):
            found.append((request["name"], exactly))
        found += [(f"{request['name']}/{each['name']}", each) for each in request.get("firstAvailable") or ()]
    return found


def shared(claim: Object, driver: str) -> dict[tuple[str, str], str]:
    """(request, sort of device) -> how containers share a device of it: "", or MPS. A configuration that the
    driver would refuse on the node is "error"."""
    result = {}
    for name, request in asked(claim):
        of_class = {f"gpu.{driver}": "gpu", f"mig.{driver}": "mig"} | {
            "gpu.nvidia.com": "gpu",
            "mig.nvidia.com": "mig",
        }
        known = of_class.get(request["deviceClassName"])
        for sort in (known,) if known else ("gpu", "mig"):
            how = ""
            for entry in claim["spec"]["devices"].get("config") or ():
                parameters = entry["opaque"]["parameters"]
                named = entry.get("requests") or ()
                if entry["opaque"]["driver"] != driver or (
                    named and name not in named and name.partition("/")[0] not in named
                ):
                    continue
                if driver == NVIDIAS:
                    meant = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}[parameters["kind"]]
                    if meant != sort:
                        how = "error" if named else how
                        continue
                    if "sharing" in parameters:
                        how = {"MPS": "MPS", "TimeSlicing": ""}[parameters["sharing"]["strategy"]]
                elif "isolation" in parameters:
                    how = {"mps": "MPS", "none": "", "timeslicing": ""}[parameters["isolation"]]
            result[name, sort] = how
    return result


# what is asked

NVIDIA_CLAUSES = st.sampled_from([
    'device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*a100.*$")',
    "device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'",
    'device.attributes["gpu.nvidia.com"].type == "mig" && device.attributes["gpu.nvidia.com"].profile == "1g.5gb"',
    'device.driver == "gpu.nvidia.com"',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("10Gi")) >= 0',
    'device.attributes["gpu.nvidia.com"].brand == "Tesla"',
])  # fmt: skip
DRANET_CLAUSES = st.sampled_from([
    'device.driver == "dra.net"',
    'device.attributes["dra.net"].rdma == true',
    'device.attributes["dra.net"].numaNode == 1',
    'device.attributes["dra.net"].ifName.startsWith("eth1")',
    '!device.attributes["dra.net"].isSriovVf && device.attributes["dra.net"].virtual == false',
    'device.attributes["dra.net"].mtu == 9000',
])  # fmt: skip


def selectors(clauses: st.SearchStrategy[str], least: int = 0) -> st.SearchStrategy[list[Object]]:
    return st.lists(clauses, min_size=least, max_size=2).map(
        lambda found: [{"cel": {"expression": each}} for each in found]
    )


@st.composite
def claims(
    draw: st.DrawFn, classes: tuple[str, ...], clauses: st.SearchStrategy[str], config: Callable[..., Any]
) -> Object:
    def body(**more: Any) -> Object:
        found: Object = {"deviceClassName": draw(st.sampled_from(classes)), **more}
        if wanted := draw(selectors(clauses)):
            found["selectors"] = wanted
        return found

    requests = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        if draw(st.booleans()):
            requests.append({"name": name, "exactly": body(count=draw(st.integers(1, 2)))})
        else:
            requests.append({"name": name, "firstAvailable": [body(name="x"), body(name="y")]})
    devices: Object = {"requests": requests}
    names = [each["name"] for each in requests]
    if found := [config(draw, names) for _ in range(draw(st.integers(0, 3)))]:
        devices["config"] = found
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"devices": devices},
    }


def placed(draw: st.DrawFn, names: list[str], driver: str, parameters: Object) -> Object:
    entry: Object = {"opaque": {"driver": driver, "parameters": parameters}}
    if draw(st.booleans()):
        entry["requests"] = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return entry


def of_nvidia(draw: st.DrawFn, names: list[str]) -> Object:
    kind = draw(st.sampled_from(("GpuConfig", "MigDeviceConfig")))
    parameters: Object = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    if strategy := draw(st.sampled_from(("", "MPS", "TimeSlicing"))):
        parameters["sharing"] = {"strategy": strategy}
    return placed(draw, names, NVIDIAS, parameters)


def of_koordra(draw: st.DrawFn, names: list[str]) -> Object:
    parameters: Object = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig"}
    if isolation := draw(st.sampled_from(("", "mps", "none", "timeslicing", "limiter"))):
        parameters["isolation"] = isolation
    return placed(draw, names, KOORDRAS, parameters)


def of_dranet(draw: st.DrawFn, names: list[str]) -> Object:
    interface = draw(st.sampled_from(({}, {"name": "net1"}, {"mtu": 9000}, {"name": "net1", "mtu": 9000})))
    return placed(draw, names, DRANETS, {"interface": interface})


def own_class(expression: str) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "own"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


EITHER: Final = "holds in koordra for GPUs and instances alike"


def over(objects: tuple[Object, ...], target: str) -> tuple[Object, Object] | None:
    """The claim and the class in the words of another driver; None where something is refused, or is told to
    hold for more."""
    found = convert(list(objects), target=target)
    if found.refused or any(EITHER in note.problem for note in found.notes):
        return None
    of_kind = {each["kind"] + each["metadata"]["name"]: each for each in found.objects}
    return of_kind["ResourceClaimc"], of_kind["DeviceClassown"]


def same(there: Object, here: Object, drivers: tuple[str, str], own: tuple[Object, Object]) -> None:
    assert selected(there, own[0], drivers[0]) == selected(here, own[1], drivers[1])
    assert [each.get("count") for _, each in asked(there)] == [each.get("count") for _, each in asked(here)]


@given(claims(("gpu.nvidia.com", "mig.nvidia.com", "own"), NVIDIA_CLAUSES, of_nvidia), NVIDIA_CLAUSES)
def test_from_nvidias_driver_and_back(claim: Object, expression: str) -> None:
    own = own_class(f'device.driver == "gpu.nvidia.com" && {expression}')
    there = over((claim, own), KOORDRA)
    if there is None:
        return
    same(claim, there[0], (NVIDIAS, KOORDRAS), (own, there[1]))
    before, after = shared(claim, NVIDIAS), shared(there[0], KOORDRAS)
    assert {key: how for key, how in after.items() if before[key] != "error"} == {
        key: how for key, how in before.items() if how != "error"
    }
    back = over(there, NVIDIA)
    if back is not None:
        same(claim, back[0], (NVIDIAS, NVIDIAS), (own, back[1]))
        again = shared(back[0], NVIDIAS)
        assert {key: how for key, how in again.items() if before[key] != "error"} == {
            key: how for key, how in before.items() if how != "error"
        }


def may_be_an_instance_by_mps(claim: Object) -> bool:
    """Which koordra refuses when the claim is made."""
    said = claim["spec"]["devices"].get("config") or ()
    return any(each["deviceClassName"] == "mig.koordra.io" for _, each in asked(claim)) and any(
        entry["opaque"]["parameters"].get("isolation") == "mps" for entry in said
    )


@given(claims(("gpu.koordra.io", "mig.koordra.io"), st.sampled_from([
    'device.attributes["koordra.io"].type == "mig"',
    'device.attributes["koordra.io"].productName.contains("H100")',
    'device.capacity["koordra.io"].memory.compareTo(quantity("10Gi")) < 0',
    'device.attributes["koordra.io"].minor == 0',
]), of_koordra))  # fmt: skip
def test_from_koordra_to_nvidias_driver_and_back(claim: Object) -> None:
    assume(not may_be_an_instance_by_mps(claim))
    own = own_class('device.driver == "koordra.io"')
    there = over((claim, own), NVIDIA)
    if there is None:
        return
    same(claim, there[0], (KOORDRAS, NVIDIAS), (own, there[1]))
    wanted = shared(claim, KOORDRAS)
    assert shared(there[0], NVIDIAS) == wanted
    back = over(there, KOORDRA)
    assert back is not None, "what koordra has said has a form in koordra"
    same(claim, back[0], (KOORDRAS, KOORDRAS), (own, back[1]))
    assert shared(back[0], KOORDRAS) == wanted


@given(claims(("own",), DRANET_CLAUSES, of_dranet), DRANET_CLAUSES)
def test_from_dranet_and_back(claim: Object, expression: str) -> None:
    own = own_class(f'device.driver == "dra.net" && {expression}')
    there = over((claim, own), KOORDRA)
    if there is None:
        return
    same(claim, there[0], (DRANETS, KOORDRAS), (own, there[1]))
    assert interfaces(claim) == interfaces(there[0])
    back = over(there, DRANET)
    if back is not None:
        same(claim, back[0], (DRANETS, DRANETS), (own, back[1]))
        assert interfaces(claim) == interfaces(back[0])


def interfaces(claim: Object) -> list[tuple[tuple[str, ...], Object]]:
    """Requests, and name and MTU of their interface; a configuration that says neither says nothing."""
    found = []
    for entry in claim["spec"]["devices"].get("config") or ():
        parameters = entry["opaque"]["parameters"]
        said = dict(parameters.get("interface") or {})
        if parameters.get("kind") == "RdmaConfig":
            network = parameters["network"]
            said = {"name": network.get("interface"), "mtu": network.get("mtu")}
        if said := {key: value for key, value in said.items() if value is not None}:
            found.append((tuple(entry.get("requests") or ()), said))
    return found


@pytest.mark.parametrize(
    ("claim_class", "target", "told"),
    [
        ("vfio.gpu.nvidia.com", KOORDRA, "has no class beside it"),
        ("nic.koordra.io", NVIDIA, "has no class beside it"),
        ("gpu.koordra.io", DRANET, "has no class beside it"),
    ],
)
def test_what_has_no_form_is_refused_by_name(claim_class: str, target: str, told: str) -> None:
    body = {"deviceClassName": claim_class}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": body}]}},
    }
    found = convert([claim], target=target)
    assert not found.objects
    assert any(told in str(each) for each in found.refused)
