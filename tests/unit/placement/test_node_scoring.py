"""Nodes packed or spread by the operator's weights: every word of the setting moves something, the claim's
own word stands above it, and people are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.allocator.explain.cost_terms import SCORING_STRATEGY
from koordra.api import objects
from koordra.cli.main import cli
from koordra.cli.what_if.manifests import Assumed, what_if
from koordra.controller.settings import Settings
from koordra.errors import InvalidInput, PlanError
from koordra.placement import plan
from koordra.placement.candidates.node_scoring import ScoringStrategy, ScoringType, written_strategy
from koordra.placement.plan import engine_for
from tests.unit.allocator.machines import (
    claim,
    config,
    counters_of,
    cut_card,
    device_classes,
    gpu,
    machine,
    node,
    place,
    pod,
    request,
    slice_of,
)
from tests.unit.compat.pods import converted
from tests.unit.forecast.test_forecast import NOW

Dict = dict[str, Any]
BUSY = "busy"
IDLE = "idle"
WORDS = (
    "cpu",
    "memory",
    "pods",
    "ephemeral-storage",
    "example.com/widget",
    "koordra.io/gpu-memory",
    "koordra.io/gpu-cores",
)


def strategy(text: str) -> ScoringStrategy:
    return written_strategy(text)


def nodes_of(objects_: Sequence[Dict], text: str = "") -> dict[str, str]:
    scoring = written_strategy(text) if text else None
    return plan([*device_classes(), *objects_], engine=engine_for(scoring=scoring)).nodes


def share(name: str, memory: str = "8Gi", *, cpu: str = "2", word: str = "") -> list[Dict]:
    configs = [config("PlacementPolicy", node=word)] if word else []
    asked = request("gpu", capacity={"memory": memory, "cores": "10"})
    return [claim(name, asked, configs=configs), pod(name, name, requests={"cpu": cpu})]


def many(count: int, **how: Any) -> list[Dict]:
    return [one for number in range(count) for one in share(f"c{number}", **how)]


def servers(count: int, **allocatable: str) -> list[Dict]:
    found = []
    for number in range(count):
        own = machine(2, 0, name=f"n{number}")
        own[0]["status"]["allocatable"] |= allocatable
        found += own
    return found


# what it does


@pytest.mark.parametrize("word", ["cpu", "pods", "koordra.io/gpu-memory", "koordra.io/gpu-cores"])
def test_a_cluster_ends_packed_or_spread(word: str) -> None:
    """Eight shares of 10 % and 2 cores on four nodes of two cards and 16 cores."""
    given = [*servers(4, cpu="16"), *many(8)]
    packed = Counter(nodes_of(given, f"MostAllocated:{word}").values())
    spread = Counter(nodes_of(given, f"LeastAllocated:{word}").values())
    assert packed == {"n0": 8}
    assert spread == dict.fromkeys(("n0", "n1", "n2", "n3"), 2)


def used(word: str) -> list[Dict]:
    """A node of which half of this resource is in use, before one where nothing is."""
    there = {"example.com/widget": "4", "ephemeral-storage": "100Gi", "pods": "4"}
    found = []
    for name in (IDLE, BUSY):
        own = machine(2, 0, name=name)
        own[0]["status"]["allocatable"] |= there
        found += own
    half = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "50Gi", "example.com/widget": "2"}
    if word.startswith("koordra.io/"):
        amounts = (
            {"memory": "80Gi", "cores": "1"} if word.endswith("memory") else {"memory": "1Mi", "cores": "100"}
        )
        holder = claim("held", request("gpu", capacity=amounts))
        holder["status"] = {
            "allocation": plan([*device_classes(), *machine(2, 0, name=BUSY), holder]).allocations[
                "default/held"
            ]
        }
        return [*found, holder]
    running = pod("r0", requests={word: half[word]} if word in half else {}, nodeName=BUSY)
    return [*found, running, *([pod("r1", nodeName=BUSY)] if word == "pods" else [])]


@pytest.mark.parametrize("word", WORDS)
def test_every_resource_decides(word: str) -> None:
    given = [*used(word), *share("c")]
    assert nodes_of(given, f"MostAllocated:{word}") == {"default/c": BUSY}
    assert nodes_of(given, f"LeastAllocated:{word}") == {"default/c": IDLE}


def test_the_weights_decide_where_resources_disagree() -> None:
    """`busy` has little CPU left and `idle` little memory of cards."""
    holder = claim("held", request("gpu", capacity={"memory": "80Gi", "cores": "1"}))
    there = [*machine(2, 0, name=BUSY), *machine(2, 0, name=IDLE)]
    holder["status"] = {
        "allocation": plan([*device_classes(), *machine(2, 0, name=IDLE), holder]).allocations["default/held"]
    }
    given = [*there, holder, pod("r", requests={"cpu": "32"}, nodeName=BUSY), *share("c")]
    for cpu, memory, node_ in ((3, 1, BUSY), (1, 3, IDLE)):
        text = f"MostAllocated:cpu={cpu},koordra.io/gpu-memory={memory}"
        assert nodes_of(given, text) == {"default/c": node_}


def test_a_node_that_has_none_of_it_comes_last_and_one_that_lacks_some_goes_by_the_rest() -> None:
    given = [*machine(2, 0, name="a"), *machine(2, 0, name="b"), *share("c")]
    given[2]["status"]["allocatable"]["example.com/widget"] = "4"
    started = pod("w", requests={"example.com/widget": "2"}, nodeName="b")
    for kind in ScoringType:
        assert nodes_of([*given, started], f"{kind}:example.com/widget") == {"default/c": "b"}
        assert nodes_of(given, f"{kind}:example.com/nowhere") == {"default/c": "a"}, "nothing decides"
    running = pod("r", requests={"cpu": "32"}, nodeName="a")
    assert nodes_of([*given, running], "MostAllocated:cpu,example.com/widget") == {"default/c": "a"}


def test_a_card_that_is_cut_has_what_its_parts_come_to_at_once() -> None:
    """10Gi are a quarter of the one node, and a sixteenth of the other."""
    parts, counters = cut_card(
        0, [("1g", 0, 1, 1), ("1g", 1, 1, 1), ("4g", 0, 4, 4)], slices=4, compute=4, place=place(0)
    )
    cut = [node("cut"), slice_of(parts, name="cut"), counters_of([counters], name="cut")]
    for one in cut[1:]:
        one["spec"]["pool"]["resourceSliceCount"] = 2
    mixed = [
        node("mixed"),
        slice_of([*parts, gpu(1, place=place(1)), gpu(2, memory="40Gi", place=place(2))], name="mixed"),
        counters_of([counters], name="mixed"),
    ]
    for one in mixed[1:]:
        one["spec"]["pool"]["resourceSliceCount"] = 2
    wanted = claim("c", request("mig", "mig"))
    assert nodes_of([*cut, *mixed, wanted], "MostAllocated:koordra.io/gpu-memory") == {"default/c": "cut"}
    assert nodes_of([*cut, *mixed, wanted], "LeastAllocated:koordra.io/gpu-memory") == {"default/c": "mixed"}


def test_it_comes_after_the_claim_and_soft_taints() -> None:
    near, far = machine(1, 1, name="near"), machine(1, 1, name="far", per_switch=1)
    far[1]["spec"]["devices"][1]["attributes"] |= {"pcieSwitch": {"string": "0000:99:00.0"}}
    running = pod("r", requests={"cpu": "32"}, nodeName="far")
    asked = [claim("c", request("gpu"), request("nic", "nic"))]
    assert nodes_of([*near, *far, running, *asked], "MostAllocated:cpu") == {"default/c": "near"}
    tainted, bare = machine(1, 0, name="a"), machine(1, 0, name="b")
    tainted[0]["spec"]["taints"] = [{"key": "k", "effect": "PreferNoSchedule"}]
    running = pod("r", requests={"cpu": "32"}, nodeName="a")
    assert nodes_of([*tainted, *bare, running, *share("c")], "MostAllocated:cpu") == {"default/c": "b"}


# whose word counts


def test_a_claim_s_word_stands_above_the_operator_s() -> None:
    for kind in ScoringType:
        assert nodes_of([*used("cpu"), *share("c", word="Binpack")], f"{kind}:cpu") == {"default/c": BUSY}
        assert nodes_of([*used("cpu"), *share("c", word="Spread")], f"{kind}:cpu") == {"default/c": IDLE}
    own = nodes_of([*used("cpu"), *share("c", word="FragmentationAware")])
    for kind in ScoringType:
        there = [*used("cpu"), *share("c", word="FragmentationAware")]
        assert nodes_of(there, f"{kind}:cpu") == own, "it does not go by weights"


@pytest.mark.parametrize(("word", "taken"), [("binpack", BUSY), ("spread", IDLE), (None, IDLE)])
def test_hami_s_annotation_is_the_claim_s_word(word: str | None, taken: str) -> None:
    legacy: Dict = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"hami.io/node-scheduler-policy": word} if word else {}},
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}}}
            ]
        },
    }
    made = converted(legacy).objects
    found = what_if(
        [*device_classes(), *used("cpu"), *made], Assumed(scoring=strategy("LeastAllocated:cpu")), NOW
    ).plan()
    assert set(found.nodes.values()) == {taken}


@pytest.mark.parametrize(("word", "taken"), [("Binpack", BUSY), ("Spread", IDLE)])
def test_without_the_setting_the_claim_s_word_is_about_the_memory_of_cards(word: str, taken: str) -> None:
    """Though the card in use would be left fuller by the share than an unused one."""
    given = [*used("koordra.io/gpu-memory"), *share("c", "70Gi", word=word)]
    assert nodes_of(given) == {"default/c": taken}
    half = claim("held", request("gpu", capacity={"memory": "40Gi", "cores": "1"}))
    there = plan([*device_classes(), *machine(2, 0, name=BUSY), half]).allocations["default/held"]
    given = [*machine(2, 0, name=BUSY), *machine(2, 0, name=IDLE), {**half, "status": {"allocation": there}}]
    assert nodes_of([*given, *share("c", "40Gi", word=word)]) == {"default/c": taken}


def test_without_the_setting_nothing_is_weighed_of_claims_that_say_nothing() -> None:
    given = [*used("cpu"), *many(6)]
    engine = engine_for()
    found = plan([*device_classes(), *given], engine=engine)
    assert found.nodes == nodes_of(given)
    assert {one.request_class.score for one in [engine.resolve(group) for group in _groups(given)]} == {None}


def _groups(given: Sequence[Dict]) -> list[Any]:
    from koordra.api.claims import ResourceClaim
    from koordra.placement.request.claim_groups import ClaimGroup

    return [ClaimGroup((ResourceClaim.from_dict(one),)) for one in given if one["kind"] == "ResourceClaim"]


def test_first_fit_weighs_nothing_and_says_so() -> None:
    with pytest.raises(PlanError, match="FirstFit weighs no nodes"):
        engine_for(policy="FirstFit", scoring=strategy("MostAllocated:cpu"))


# what people write and read


@pytest.mark.parametrize(
    "text",
    [
        "cpu=1", "Most:cpu", "MostAllocated", "MostAllocated:", "MostAllocated:cpu=0", "MostAllocated:cpu=101",
        "MostAllocated:cpu=-1", "MostAllocated:cpu=1.5", "MostAllocated:cpu=１", "MostAllocated:cpu=1,cpu=2",
        "MostAllocated:koordra.io/slots", "MostAllocated:=1", "MostAllocated:a b=1", "mostallocated:cpu",
        f"MostAllocated:{','.join(f'r{number}' for number in range(17))}", f"MostAllocated:{'a' * 400}",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_starts(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--scoring-strategy: .*; write TYPE:resource=weight"):
        Settings("me", scoring_strategy=text)


def test_what_is_written_is_what_is_meant() -> None:
    found = strategy(" LeastAllocated : cpu , koordra.io/gpu-memory = 100 ")
    assert found == ScoringStrategy(ScoringType.LEAST_ALLOCATED, (("cpu", 1), ("koordra.io/gpu-memory", 100)))
    assert Settings("me", scoring_strategy="MostAllocated:cpu").scoring == strategy("MostAllocated:cpu=1")
    assert Settings("me").scoring is None


def test_plan_and_explain_go_by_it_and_say_so(tmp_path: Any) -> None:
    file, option = (
        tmp_path / "all.yaml",
        ["--scoring-strategy", "MostAllocated:cpu=3,koordra.io/gpu-memory=1"],
    )
    given = [*device_classes(), *used("cpu"), *share("c")]
    for one in given:
        if one["kind"] in ("ResourceClaim", "Pod"):
            one["metadata"].setdefault("uid", f"{one['kind']}-{objects.name(one)}")
            one["metadata"].setdefault("namespace", "default")
    file.write_text(yaml.safe_dump_all(given))
    least = ["--scoring-strategy", "LeastAllocated:cpu=3,koordra.io/gpu-memory=1"]
    for asked, where in ((least, IDLE), (option, BUSY)):
        told = CliRunner().invoke(cli, ["plan", "-f", str(file), "-o", "yaml", *asked])
        (allocation,) = yaml.safe_load(told.output)["allocations"].values()
        (result,) = allocation["devices"]["results"]
        assert result["pool"] == where
    claimed = next(one for one in given if one["kind"] == "ResourceClaim")
    claimed["status"] = {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "name": "c", "uid": "Pod-c"}],
    }
    next(one for one in given if objects.name(one) == "c" and one["kind"] == "Pod")["spec"]["nodeName"] = BUSY
    file.write_text(yaml.safe_dump_all(given))
    text = " ".join(CliRunner().invoke(cli, ["explain", "claim/c", "-f", str(file), *option]).output.split())
    assert "idle is the next best and loses by: how full it is, by weight" in text
    assert "scoring, by weight (1/1000)" in text
    assert "cpu in use (1/1000)" in text
    told = CliRunner().invoke(cli, ["explain", "claim/c", "-f", str(file), "-o", "yaml", *option])
    placement = yaml.safe_load(told.output)["claims"][0]["placement"]
    assert placement["decidedBy"] == SCORING_STRATEGY
    assert placement["scoring"] == {
        "cost": 1000 - (3 * 531 + 50) // 4,
        "full": {"cpu": 531, "koordra.io/gpu-memory": 50},
    }
    assert placement["next"]["scoring"]["full"] == {"cpu": 31, "koordra.io/gpu-memory": 50}
