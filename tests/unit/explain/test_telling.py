"""Reasons of one clause become one, with true counts; what leads, and what is told aside."""

from __future__ import annotations

import random

from koordra.allocator.explain.grouping import ReasonGroups, grouped
from koordra.allocator.explain.telling import headline, in_one_line, lines
from koordra.allocator.reasons import Cause, Reason, amount_text, free_text, reason_of
from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.placement import plan
from tests.fakes import joint_cluster
from tests.fakes.joint_cluster import JointCluster, gpu_slice
from tests.unit.allocator.machines import claim, device_classes, machine, node, pod, request


def short(node: str, device: str, *, free: int, of: int = 80) -> Reason:
    figures = f"free {free}Gi of {of}Gi"
    return Reason(
        node,
        device,
        "gpu",
        Cause.INSUFFICIENT_CAPACITY.value,
        f"memory: requested 60Gi, {figures}",
        clause="memory: requested 60Gi,",
        at_best=f"at best {figures}",
        short=(60 - free) / of,
    )


def model(node: str, device: str, name: str) -> Reason:
    return Reason(
        node,
        device,
        "gpu",
        Cause.SELECTOR_MISMATCH.value,
        f"selector x: model is {name}",
        clause="selector x:",
        values=((f"model is {name}", 1),),
    )


def of_node(cause: Cause, node: str = "n1", **more: bool) -> Reason:
    return Reason(node, None, None, cause.value, f"{cause.value} of the node", **more)


def test_the_nearest_miss_speaks_for_all_in_any_order() -> None:
    reasons = [short(f"n{at}", "gpu-0", free=at % 7) for at in range(40)]
    for seed in range(5):
        random.Random(seed).shuffle(reasons)
        (told,) = grouped(reasons)
        assert (told.nodes, told.devices, told.node) == (40, 40, "n13")
        assert told.detail == "memory: requested 60Gi, at best free 6Gi of 80Gi"
        assert told.examples == ("n0", "n1", "n10")
        assert str(told).startswith("40 nodes (40 devices) (request gpu): InsufficientCapacity: memory")
        assert lines([told])[1:] == ["    nearest n13/gpu-0; nodes n0, n1, n10 and 37 more"]


def test_values_are_counted_over_all_devices() -> None:
    found = [model("n1", f"gpu-{at}", f"M{at % 5}") for at in range(12)]
    (told,) = grouped([*found, model("n2", "gpu-0", "M4")])
    assert told.detail == "selector x: model is M0 (3), model is M1 (3), model is M4 (3) and 2 more"
    assert (told.nodes, told.devices) == (2, 13)


def test_nodes_that_say_the_same_are_given_once() -> None:
    groups = ReasonGroups()
    groups.add(model("n1", "gpu-0", "H100"), ["n1", "n2", "n3"])
    groups.add(model("n9", "gpu-0", "A100"), ["n9"])
    (told,) = groups.told()
    assert (told.nodes, told.devices, told.detail) == (4, 4, "selector x: model is H100 (3), model is A100")


def test_which_word_leads() -> None:
    wait, never = short("n1", "gpu-0", free=1), of_node(Cause.EXCEEDS_DEVICE)
    unsuitable, kind = of_node(Cause.NODE_UNSUITABLE), model("n1", "gpu-1", "H100")
    aside = of_node(Cause.TAINTED, is_aside=True)
    pinned = of_node(Cause.NODE_UNSUITABLE, "n2", is_pinned=True)
    assert headline([kind, never, unsuitable, aside, wait]) == "InsufficientCapacity"
    assert headline([kind, never, unsuitable, aside]) == "NodeUnsuitable"
    assert headline([kind, never, aside]) == "ExceedsDevice"
    assert headline([kind, aside]) == "SelectorMismatch"
    assert headline([aside]) == "Tainted"
    assert headline([wait, pinned]) == "NodeUnsuitable", "what room others have does not help the pod"


def test_one_line_has_the_headline_first_and_never_too_many_bytes() -> None:
    many = [reason_of(Cause.NODE_UNSUITABLE, f"clause {at} of \u00e4ll") for at in range(100)]
    text = in_one_line([*many, short("n1", "gpu-0", free=1)], most=400)
    assert text.startswith(
        "request gpu, n1/gpu-0: memory: requested 60Gi, free 1Gi of 80Gi; NodeUnsuitable: clause"
    )
    assert text.endswith(" more")
    assert len(text.encode()) <= 400
    assert in_one_line([of_node(Cause.TAINTED, is_aside=True), many[0]], most=400) == "clause 0 of \u00e4ll"


def test_a_terminal_is_not_flooded() -> None:
    many = [reason_of(Cause.NODE_UNSUITABLE, f"clause {at}") for at in range(100)]
    assert lines(many, most=5) == ["everywhere: NodeUnsuitable: clause " + str(at) for at in range(4)] + [
        "... and 96 more"
    ]
    assert len(lines(many[:5], most=5)) == 5


def test_rates_are_written_as_people_write_them() -> None:
    assert amount_text("koordra.io/bandwidth", 200 * 10**9) == "200 Gb/s"
    assert amount_text("bandwidth", 12_500_000_000) == "12.5 Gb/s"
    assert amount_text("bandwidth", 500) == "500 b/s"
    assert amount_text("memory", 80 * 1024**3) == "80Gi"


def test_a_node_whose_devices_would_not_do_is_not_told_for_its_taint() -> None:
    """What the pod would have to tolerate matters only where that helps."""
    tainted = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    objects = [*machine(2, 0, name="a"), *machine(2, 0, name="b"), node("c", spec=tainted)]
    objects[2]["spec"] = tainted
    asked = [claim("c", request("gpu", count=2, capacity={"memory": "90Gi"})), pod("p", "c")]
    told = plan([*device_classes(), *objects, *asked]).unsatisfiable["default/c"]
    assert {(one.reason, one.nodes) for one in told} == {("ExceedsDevice", 2), ("NodeUnsuitable", 1)}
    smaller = [claim("c", request("gpu", count=3)), claim("d", request("gpu", count=2)), pod("p", "c", "d")]
    assert (
        headline(plan([*device_classes(), *objects, *smaller]).unsatisfiable["default/c"]) == "ExceedsDevice"
    )


def told_of_nine_gpus(*, of: int) -> tuple[str, str]:
    """What a claim for nine GPUs hears where three nodes have 8 free ones and a fourth has this many in
    use."""
    cluster = JointCluster(nodes=3, gpus=8)
    cluster.api.create(NODES, joint_cluster.node("full"))
    cluster.api.create(RESOURCE_SLICES, gpu_slice("full", of))
    cluster.start_again()
    cluster.claim("holder", count=of)
    cluster.pod("holder", "holder", nodeSelector={"kubernetes.io/hostname": "full"})
    cluster.settle()
    cluster.claim("nine", count=9)
    cluster.pod("nine", "nine")
    cluster.settle()
    return cluster.told[-1].reason, cluster.told[-1].message


def test_a_node_in_use_that_has_enough_speaks_for_nodes_that_never_will() -> None:
    reason, message = told_of_nine_gpus(of=16)
    assert reason == "InsufficientCapacity"
    assert "devices: requested 9 of class gpu.koordra.io, at best 16 of 16 suitable, 0 free" in message
    assert "no node has more than" not in message


def test_where_no_node_will_ever_do_nobody_is_told_to_wait_for_room() -> None:
    reason, message = told_of_nine_gpus(of=8)
    assert reason == "ExceedsDevice"
    assert message == (
        "claim nine: request gpu, 4 nodes: devices: requested 9 of class gpu.koordra.io, no node has more than 8"
    )


def test_figures_that_read_alike_say_what_lies_between_them() -> None:
    card, gi = 81559 * 1024**2, 1024**3
    assert free_text("memory", card - 1024**2, asked=card) == "79.6Gi (1Mi too little)"
    assert free_text("memory", 80 * gi - 1024**2, asked=80 * gi) == "80.0Gi (1Mi too little)"
    assert free_text("memory", 40 * gi, asked=card) == "40Gi"
    assert free_text("memory", card, asked=card) == "79.6Gi"
    assert free_text("bandwidth", 199_999_999_999, asked=200 * 10**9) == "200 Gb/s (1 b/s too little)"
