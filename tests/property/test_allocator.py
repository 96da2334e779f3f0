"""What holds for every input the allocator may be given: made-up machines and claims, checked by independent
code."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from koordra.placement import plan
from tests.conformance import checker, objective
from tests.long import examples
from tests.unit.allocator import machines

Dict = dict[str, Any]

CONSTRAINED = (
    "koordra.io/numaNode",
    "koordra.io/pcieSwitch",
    "koordra.io/uuid",
    "koordra.io/type",
    "resource.kubernetes.io/pcieRoot",
)
LINKS = ("none", "hopper", "hopper", "switch", "bridges", "crossed", "mesh")
SCOPES = ("PCIeSwitch", "PCIeRoot", "NUMANode", "Node")


POLICIES = ("Honor", "Prefer")


@st.composite
def nodes(draw: st.DrawFn, *, most: int) -> list[Dict]:
    gpus, nics = draw(st.integers(1, most)), draw(st.integers(0, most))
    return draw(wired(gpus, nics))


@st.composite
def wired(draw: st.DrawFn, gpus: int, nics: int) -> list[Dict]:
    """A node with so many devices, some way of NVLink, and sometimes a policy about its partitions."""
    policy = draw(st.sampled_from([None, None, *POLICIES]))
    return machines.machine(
        gpus,
        nics,
        per_switch=draw(st.sampled_from([1, 2])),
        per_numa=draw(st.sampled_from([2, 4])),
        links=draw(st.sampled_from(LINKS)) if gpus < 8 else draw(st.sampled_from(LINKS[:-1])),
        labels={"koordra.io/gpu-partition-policy": policy} if policy else {},
    )


@st.composite
def requests(draw: st.DrawFn, name: str, *, most: int) -> Dict:
    if draw(st.booleans()):
        memory = draw(st.sampled_from(["10Gi", "40Gi", "80Gi", "0.5Gi", None]))
        amounts = {"memory": memory} if memory else {}
        cores = draw(st.sampled_from([None, None, "50"]))
        return machines.request(
            name,
            "gpu",
            draw(st.integers(1, most)),
            capacity={**amounts, **({"cores": cores} if cores else {})},
        )
    part = draw(st.sampled_from(["25", "50", None]))
    return machines.request(name, "nic", draw(st.integers(1, most)), capacity={"share": part} if part else {})


@st.composite
def claims(draw: st.DrawFn, *, most_claims: int, most_requests: int, most_count: int) -> list[Dict]:
    found = []
    for number in range(draw(st.integers(1, most_claims))):
        asked = [
            draw(requests(f"r{index}", most=most_count))
            for index in range(draw(st.integers(1, most_requests)))
        ]
        configs = []
        if draw(st.booleans()):
            configs = [
                machines.joint(
                    draw(st.sampled_from(SCOPES)),
                    enforcement=draw(st.sampled_from(["Required", "Preferred"])),
                    pairing=draw(st.sampled_from(["PerDevice", "PerGroup", "Together"])),
                )
            ]
        constraints = []
        if draw(st.integers(0, 2)) == 0:
            kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
            names = [entry["name"] for entry in asked]
            covered = draw(st.lists(st.sampled_from(names), unique=True))
            constraints = [{kind: draw(st.sampled_from(CONSTRAINED)), "requests": covered}]
        found.append(machines.claim(f"c{number}", *asked, configs=configs, constraints=constraints))
    if draw(st.booleans()):
        found.append(machines.pod("pod", *(entry["metadata"]["name"] for entry in found)))
    return found


@st.composite
def held(draw: st.DrawFn, node: list[Dict]) -> list[Dict]:
    """A claim that holds parts of some devices."""
    results = []
    for device in node[1]["spec"]["devices"]:
        part = draw(st.sampled_from([0, 0, 0, 1, 2]))
        if part == 0:
            continue
        consumed = dict.fromkeys(device["capacity"], "0")
        main = "memory" if "memory" in consumed else "share"
        consumed[main] = (
            {"memory": "40Gi", "share": "50"}[main] if part == 1 else device["capacity"][main]["value"]
        )
        results.append(
            {
                "request": "r",
                "driver": "koordra.io",
                "pool": "node-1",
                "device": device["name"],
                "shareID": f"s-{device['name']}",
                "consumedCapacity": consumed,
            }
        )
    if not results:
        return []
    return [
        machines.allocated(machines.claim("held", namespace="elsewhere"), {"devices": {"results": results}})
    ]


@st.composite
def clusters(
    draw: st.DrawFn, *, most: int = 4, most_claims: int = 3, most_requests: int = 3, most_count: int = 3
) -> list[Dict]:
    node = draw(nodes(most=most))
    wanted = draw(claims(most_claims=most_claims, most_requests=most_requests, most_count=most_count))
    return [*machines.device_classes(), *node, *draw(held(node)), *wanted]


@examples(150)
@given(clusters(), st.sampled_from(["koordra", "Binpack", "Spread", "FirstFit"]))
def test_what_is_planned_is_legal(objects: list[Dict], policy: str) -> None:
    """Never over-allocates, meets every clause, and gives either an allocation or reasons to every claim."""
    found = plan(objects, policy=policy)
    assert checker.violations(objects, found.allocations) == []
    pending = {checker._key(o) for o in objects if o["kind"] == "ResourceClaim" and "status" not in o}
    assert set(found.allocations) | set(found.unsatisfiable) | set(found.undecided) == pending
    assert all(reason.detail for reasons in found.unsatisfiable.values() for reason in reasons)
    assert all(found.unsatisfiable[claim] for claim in found.unsatisfiable)


@examples(60)
@given(clusters(), st.sampled_from(["koordra", "FirstFit"]), st.randoms(use_true_random=False))
def test_order_of_documents_changes_nothing(objects: list[Dict], policy: str, shuffle: random.Random) -> None:
    shuffled = list(objects)
    shuffle.shuffle(shuffled)
    assert plan(shuffled, policy=policy) == plan(objects, policy=policy)


def is_the_best(objects: list[Dict]) -> None:
    """Feasible exactly when some choice is legal, and no choice is cheaper by the written objective."""
    found = plan(objects)
    assert not found.undecided
    best = objective.best(objects)
    assert bool(plan(objects, policy="FirstFit").allocations) == (best is not None)
    if best is None:
        assert not found.allocations
    else:
        assert {-score for score in found.scores.values()} == {best}
        assert objective.cost(objects, found.allocations) == best


@examples(60)
@given(clusters(most=4, most_claims=3, most_requests=2, most_count=3))
def test_finds_the_best_that_exists(objects: list[Dict]) -> None:
    """Several claims on up to four GPUs and four NICs."""
    assume(objective.how_many(objects) <= 1500)
    is_the_best(objects)


@st.composite
def full_machines(draw: st.DrawFn) -> list[Dict]:
    """One claim on eight GPUs and eight NICs, of which some are taken."""
    node = draw(wired(8, 8))
    whole = draw(st.booleans())
    amounts = {} if whole else {"memory": "40Gi"}
    asked = [machines.request("gpu", "gpu", draw(st.integers(1, 8)), capacity=amounts)]
    nics = draw(st.integers(0, 8))
    if nics:
        asked.append(machines.request("nic", "nic", nics))
    configs = []
    if draw(st.booleans()):
        configs = [
            machines.joint(
                draw(st.sampled_from(SCOPES)),
                enforcement=draw(st.sampled_from(["Required", "Preferred"])),
                pairing=draw(st.sampled_from(["PerDevice", "PerGroup", "Together"])),
            )
        ]
    wanted = machines.claim("c", *asked, configs=configs)
    return [*machines.device_classes(), *node, *draw(held(node)), wanted]


@examples(12)
@given(full_machines())
def test_finds_the_best_of_a_full_machine(objects: list[Dict]) -> None:
    assume(objective.how_many(objects) <= 1000)
    is_the_best(objects)


@st.composite
def nvlinked(draw: st.DrawFn) -> list[Dict]:
    """One or two claims of one pod for whole or half cards of a machine with NVLink, of which some are
    taken."""
    node = draw(wired(draw(st.sampled_from([4, 5, 6, 7, 8, 8, 8])), 0))
    counts = draw(st.sampled_from([(2,), (3,), (4,), (5,), (1, 2), (2, 2), (2, 3), (4, 2)]))
    amounts = draw(st.sampled_from([{}, {}, {"memory": "40Gi"}]))
    wanted = [
        machines.claim(
            f"c{number}",
            machines.request("gpu", "gpu", count, capacity=amounts),
            configs=draw(
                st.sampled_from([[], [], *([machines.config("GpuConfig", partition=p)] for p in POLICIES)])
            ),
        )
        for number, count in enumerate(counts)
    ]
    together = machines.pod("pod", *(entry["metadata"]["name"] for entry in wanted))
    taken = draw(held(node)) if draw(st.booleans()) else []
    return [*machines.device_classes(), *node, *taken, *wanted, together]


@examples(60)
@given(nvlinked())
def test_finds_the_best_over_nvlink(objects: list[Dict]) -> None:
    assume(objective.how_many(objects) <= 1100)
    is_the_best(objects)


@st.composite
def cut_machines(draw: st.DrawFn) -> list[Dict]:
    """One or two cards in MIG mode beside up to two whole ones and NICs, of which some is taken; claims for
    slices."""
    slices, compute = draw(st.sampled_from([(4, 3), (4, 4), (3, 3)]))
    parts = [("4g", 0, slices, compute), ("1g", 0, 1, 1), *[("1g", at, 1, 1) for at in range(1, compute)]]
    parts += draw(st.lists(st.sampled_from([("2g", 0, 2, 2), ("2g", 1, 2, 1), ("1m", 2, 1, 1)]), unique=True))
    per_switch, nics = draw(st.sampled_from([1, 2])), draw(st.integers(0, 2))
    whole, cut = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    devices, sets = [], []
    for number in range(cut):
        here = machines.place(number, per_switch=per_switch, per_numa=2)
        mine, counters = machines.cut_card(number, parts, slices=slices, compute=compute, place=here)
        devices += mine
        sets.append(counters)
    for number in range(whole):
        devices.append(machines.gpu(cut + number, place=machines.place(cut + number, per_switch=per_switch)))
    for number in range(nics):
        devices.append(machines.nic(number, place=machines.place(number, per_switch=per_switch)))
    published = machines.slice_of(devices)
    published["spec"]["pool"]["resourceSliceCount"] = 2
    objects = [machines.node(), published, {**machines.counters_of(sets)}]
    objects[2]["spec"]["pool"] = published["spec"]["pool"]
    taken = draw(st.sampled_from([None, *(part for part in parts[1:])]))
    if taken is not None:
        device = f"gpu-0-mig-{taken[0]}-{taken[1]}"
        result = {"request": "r", "driver": "koordra.io", "pool": "node-1", "device": device}
        objects.append(
            machines.allocated(
                machines.claim("held", namespace="elsewhere"), {"devices": {"results": [result]}}
            )
        )
    memory = draw(st.sampled_from([None, "10Gi", "15Gi", "20Gi", "40Gi"]))
    asked = [
        machines.request(
            "part", "mig", draw(st.integers(1, 2)), **({"capacity": {"memory": memory}} if memory else {})
        )
    ]
    if nics and draw(st.booleans()):
        asked.append(machines.request("nic", "nic", 1))
    if whole and draw(st.booleans()):
        asked.append(machines.request("gpu", "gpu", 1))
    return [*machines.device_classes(), *objects, machines.claim("c", *asked)]


@examples(60)
@given(cut_machines())
def test_finds_the_best_place_of_a_slice(objects: list[Dict]) -> None:
    """Of all places that are possible one that destroys least of the others."""
    assume(objective.how_many(objects) <= 1500)
    is_the_best(objects)


@examples(25)
@given(full_machines(), st.sampled_from(["koordra", "Binpack", "Spread", "FirstFit"]))
def test_a_full_machine_is_planned_legally(objects: list[Dict], policy: str) -> None:
    found = plan(objects, policy=policy)
    assert not found.undecided
    assert checker.violations(objects, found.allocations) == []
    assert bool(found.allocations) == bool(plan(objects, policy="FirstFit").allocations)


@examples(60)
@given(clusters())
def test_release_undoes_allocate(objects: list[Dict]) -> None:
    """Writing the plan down and giving it back leaves the same plan; with it written, nothing is pending."""
    found = plan(objects)
    written = [
        machines.allocated(o, found.allocations[checker._key(o)])
        if o["kind"] == "ResourceClaim" and checker._key(o) in found.allocations
        else o
        for o in objects
    ]
    again = plan(written)
    assert not again.allocations
    assert set(again.unsatisfiable) == set(found.unsatisfiable)
    assert plan(objects) == found
