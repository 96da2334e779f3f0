"""Who keeps a share: whatever class, claim and node say, in whatever order, admission, the allocator and
Prepare come to the same end, which is worked out here a second time; and whatever is prepared in whatever
order while the operator changes policies, no card has a share with limits beside one without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from koordra.api.opaque.isolation import IsolationPolicy
from koordra.controller.webhook.claims import AskedDevices
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.placement import plan
from koordra.topology.presets import write_machine
from tests.fakes.node_claims import GPU_0, GPU_1, NODE, WHOLE, claim, gpu, parameters
from tests.long import examples
from tests.unit.allocator import machines
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

LIMITED, UNLIMITED = IsolationPolicy(("limiter",)), IsolationPolicy(("none",))
POLICIES = (
    LIMITED,
    UNLIMITED,
    IsolationPolicy(("mps", "limiter")),
    IsolationPolicy(("limiter", "mps"), "mps"),
    IsolationPolicy(()),
)
"""Those that a node can have; the last is one whose backends are not there."""
WORDS = ("none", "limiter", "mps")
DRAWING = {"graphics", "display", "ngx", "all"}

words = st.sampled_from(WORDS)
parts = st.lists(st.sampled_from(["compute", "video", "graphics", "all", "display"]), min_size=1, max_size=2)
of_claim = st.fixed_dictionaries({}, optional={"isolation": words, "driverCapabilities": parts})


@st.composite
def of_class(draw: st.DrawFn) -> dict[str, Any]:
    """One that decodes: its own words are among those that it allows."""
    found: dict[str, Any] = {}
    allowed = draw(st.lists(words, min_size=1, max_size=2, unique=True) | st.none())
    if allowed:
        found["allowedIsolation"] = allowed
    for name in ("isolation", "defaultIsolation"):
        if draw(st.booleans()):
            found[name] = draw(st.sampled_from(allowed or WORDS))
    if draw(st.booleans()):
        found["driverCapabilities"] = draw(parts)
    return found


Said = tuple[tuple[str, ...], dict[str, Any]]
"""Requests that an entry names, and its fields."""
claims = st.lists(
    st.tuples(st.sampled_from([(), ("gpu",), ("other",), ("gpu", "other")]), of_claim), max_size=3
)
classes = st.lists(of_class(), max_size=2)


class Backend(NoIsolation):
    def __init__(self, name: str) -> None:
        self.name = name


@cache
def machine() -> NodeInventory:
    with TemporaryDirectory() as root:
        write_machine("hgx-h100", Path(root), serial=NODE)
        return inventory_of(discover(Path(root)))


def fresh(folder: str, policy: IsolationPolicy) -> PluginNode:
    node = PluginNode(Path(folder), with_policy(machine(), policy))
    node.backends = {word: Backend(word) for word in WORDS}
    return node


def with_policy(inventory: NodeInventory, policy: IsolationPolicy) -> NodeInventory:
    return replace(inventory, offering=Offering(isolation=policy))


def expected(
    of_class: Sequence[dict[str, Any]], of_claim: Sequence[Said], node: IsolationPolicy
) -> str | None:
    """The word for a share of request `gpu`, None where it is refused: the rules of docs/isolation.md, one
    after the other."""
    own = [
        fields
        for named in (False, True)
        for requests, fields in of_claim
        if bool(requests) is named and (not requests or "gpu" in requests)
    ]

    def last(entries: Sequence[dict[str, Any]], name: str) -> Any:
        return next((entry[name] for entry in reversed(entries) if name in entry), None)

    allowed, default = None, None
    for entry in of_class:
        if "allowedIsolation" in entry:
            allowed, default = entry["allowedIsolation"], None
        default = entry.get("defaultIsolation", default)
    said = [last(of_class, "isolation"), last(own, "isolation"), default, allowed and allowed[0]]
    said += [node.default, *(node.allowed or ()), "none"]
    word = next(one for one in said if one)
    if word not in (node.allowed or ()) or (allowed and word not in allowed):
        return None
    drawing = DRAWING & {*(last(own, "driverCapabilities") or ())}
    given = {*(last(of_class, "driverCapabilities") or ())}
    extra = drawing - given if "all" not in given else set()
    if word != "none" and extra and not ("all" in extra and given >= {"graphics", "display", "ngx"}):
        return None
    return str(word)


def allocated(
    of_class: Sequence[dict[str, Any]], of_claim: Sequence[Said], number: int = 1
) -> dict[str, Any]:
    config = [parameters("GpuConfig", source="FromClass", **fields) for fields in of_class]
    config += [parameters("GpuConfig", requests=requests, **fields) for requests, fields in of_claim]
    return claim(number, gpu("gpu", GPU_0, "20Gi"), config=config)


def opaque(fields: dict[str, Any]) -> dict[str, Any]:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", **fields}
    return {"opaque": {"driver": "koordra.io", "parameters": body}}


def gold(of_class: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (gpus,) = (one for one in machines.device_classes() if one["metadata"]["name"] == "gpu.koordra.io")
    spec = {**gpus["spec"], "config": [opaque(fields) for fields in of_class]}
    return {**gpus, "metadata": {"name": "gold.koordra.io"}, "spec": spec}


def asking(of_claim: Sequence[Said]) -> dict[str, Any]:
    requests = [
        machines.request("gpu", "gold", capacity={"memory": "20Gi"}),
        machines.request("other", "nic"),
    ]
    configs = [{**opaque(fields), **({"requests": [*named]} if named else {})} for named, fields in of_claim]
    return machines.claim("c", *requests, configs=configs)


@examples(100)
@given(classes, claims, st.sampled_from(POLICIES))
def test_admission_allocator_and_prepare_come_to_the_same_end(
    of_class: list[dict[str, Any]],
    of_claim: list[Said],
    node: IsolationPolicy,
) -> None:
    word = expected(of_class, of_claim, node)
    event("refused" if word is None else word)
    with TemporaryDirectory() as folder:
        plugin = fresh(folder, node)
        obj = allocated(of_class, of_claim)
        plugin.claims.put(obj)
        try:
            prepared = plugin.plugin().prepare(ref_of(obj)).devices[0].isolation
        except PrepareError as error:
            assert "isolation" in str(error)
            prepared = None
    assert prepared == word

    published = {name.partition("/")[2]: value for name, value in node.attributes().items()}
    devices = [
        machines.gpu(0, place=machines.place(0), **published),
        machines.nic(0, place=machines.place(0)),
    ]
    cluster = [
        machines.node("n"),
        machines.slice_of(devices, name="n"),
        *machines.device_classes(),
        gold(of_class),
    ]
    found = plan([*cluster, asking(of_claim)])
    assert ("default/c" in found.allocations) is (word is not None), found.unsatisfiable

    admitted = AskedDevices.of(asking(of_claim)).isolation_answers({"gold.koordra.io": gold(of_class)})[0]
    if admitted:
        assert word is None, "what admission refuses no node gives"
        assert all(expected(of_class, of_claim, one) is None for one in POLICIES)


# --- one node, many claims, and an operator who changes his mind -------------------------------------------

STEPS = st.one_of(
    st.tuples(
        st.just("prepare"),
        st.integers(1, 6),
        st.sampled_from([GPU_0, GPU_1]),
        st.sampled_from(["5Gi", "10Gi", WHOLE]),
        classes,
        claims,
        st.booleans(),
    ),
    st.tuples(st.just("unprepare"), st.integers(1, 6)),
    st.tuples(st.just("policy"), st.sampled_from(POLICIES)),
    st.just(("restart",)),
    st.just(("reboot",)),
)


def shares(records: Sequence[ClaimRecord]) -> Iterator[tuple[str, str]]:
    """(card, isolation) of what is less than a card."""
    for device in itertools.chain.from_iterable(record.devices for record in records):
        if not device.admin_access and dict(device.consumed)["memory"] != WHOLE:
            yield device.device, str(device.isolation)


@examples(60)
@given(st.lists(STEPS, min_size=2, max_size=14))
def test_no_card_has_a_share_with_limits_beside_one_without(steps: list[tuple[Any, ...]]) -> None:
    """Two plugins overlap during an update: the policy of one may be the one from before."""
    with TemporaryDirectory() as folder:
        node = fresh(folder, LIMITED)
        plugin, boots = node.plugin(), itertools.count(1)
        known: dict[int, dict[str, Any]] = {}
        for name, *arguments in steps:
            before = {record.ref.uid: record for record in plugin.records()}
            if name == "policy":
                node.inventory = with_policy(node.inventory, arguments[0])
            elif name == "restart":
                plugin = node.plugin()
            elif name == "reboot":
                boot = replace(node.inventory.machine, boot_id=f"boot-{next(boots)}")
                node.inventory = replace(node.inventory, machine=boot)
                plugin = node.plugin()
            elif name == "unprepare" and arguments[0] in known:
                plugin.unprepare(ref_of(known.pop(arguments[0])))
            elif name == "prepare":
                number, card, memory, of_class, of_claim, admin = arguments
                config = allocated(of_class, of_claim)["status"]["allocation"]["devices"]["config"]
                share = f"5c1f0000-0000-5000-8000-{number:012x}"
                new = claim(number, gpu("gpu", card, memory, share=share, admin=admin or None), config=config)
                obj = known.setdefault(number, new)
                node.claims.put(obj)
                with suppress(PrepareError):
                    plugin.prepare(ref_of(obj))
                    event("prepared")
            held = node.checkpoint().of_boot(node.inventory.boot_id)
            for card in {card for card, _ in shares(held)}:
                kinds = {word == "none" for of, word in shares(held) if of == card}
                assert len(kinds) == 1, [*shares(held)]
            policy = node.inventory.offering.isolation
            for record in held:
                kept = before.get(record.ref.uid)
                if kept and kept.boot_id == record.boot_id:
                    assert [d.isolation for d in record.devices] == [d.isolation for d in kept.devices]
                else:
                    assert all(word in (policy.allowed or ()) for _, word in shares([record]))


@pytest.mark.parametrize("first", [0, 1])
def test_two_allocators_that_do_not_know_of_each_other(tmp_path: Path, first: int) -> None:
    """kube-scheduler and koordra's controller have each given a share of one card, and two plugins, of before
    and after a change of policy, are asked: the later one is refused, whichever it is."""
    nodes = [fresh(str(tmp_path), policy) for policy in (LIMITED, UNLIMITED)]
    objects = [
        claim(number, gpu("gpu", GPU_0, "10Gi", share=f"5c1f0000-0000-5000-8000-{number:012x}"))
        for number in (1, 2)
    ]
    for node, obj in zip(nodes, objects, strict=True):
        node.claims.put(obj)
    nodes[first].plugin().prepare(ref_of(objects[first]))
    other = 1 - first
    with pytest.raises(PrepareError, match="a card is kept in one way at a time"):
        nodes[other].plugin().prepare(ref_of(objects[other]))
    nodes[first].plugin().unprepare(ref_of(objects[first]))
    nodes[other].plugin().prepare(ref_of(objects[other]))
