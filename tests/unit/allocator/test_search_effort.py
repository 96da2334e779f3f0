"""How much the search tries in the worst cases: counted, not timed, so that it holds on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import Outcome
from koordra.placement import plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    devices_of,
    gpu,
    joint,
    machine,
    nic,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Placements tried per search, in order."""
    counts: list[int] = []
    run = Search.run

    def counted(search: Search) -> Outcome:
        outcome = run(search)
        counts.append(search.tried)
        return outcome

    monkeypatch.setattr(Search, "run", counted)
    return counts


def pairs_as_requests(count: int = 8, *, grouped: bool = False) -> Dict:
    """Pairs the way upstream has to write them: 2n requests and n constraints."""
    requests = [request(f"{kind}{n}", {"g": "gpu", "n": "nic"}[kind]) for n in range(count) for kind in "gn"]
    if grouped:
        requests.sort(key=lambda entry: str(entry["name"])[0])
    constraints = [
        {"requests": [f"g{n}", f"n{n}"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        for n in range(count)
    ]
    return claim("pairs", *requests, constraints=constraints)


def joint_claim(count: int = 8, **options: Any) -> Dict:
    return claim(
        "pairs",
        request("gpu", count=count),
        request("nic", "nic", count),
        configs=[joint("PCIeSwitch", **options)],
    )


def moved_nic() -> list[Dict]:
    """Eight GPUs and eight NICs, but the last NIC hangs beside another one's GPU."""
    devices = [gpu(n, place=place(n)) for n in range(8)] + [nic(n, place=place(min(n, 6))) for n in range(8)]
    return [node(), slice_of(devices)]


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("wanted", [joint_claim(), pairs_as_requests(), pairs_as_requests(grouped=True)])
def test_eight_pairs_are_found_directly(wanted: Dict, policy: str, tried: list[int]) -> None:
    found = plan([*device_classes(), *machine(), wanted], policy=policy)
    assert found.levels == {"default/pairs": "PIX"}
    # One walk down: all GPUs and NICs are taken, so that no other choice can be better.
    assert sum(tried) <= 136


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("wanted", [joint_claim(), pairs_as_requests(), pairs_as_requests(grouped=True)])
@pytest.mark.parametrize("objects", [machine(nics=7), moved_nic()], ids=["one missing", "one moved"])
def test_eight_pairs_with_one_nic_short_are_refused_directly(
    objects: Sequence[Dict], wanted: Dict, policy: str, tried: list[int]
) -> None:
    found = plan([*device_classes(), *objects, wanted], policy=policy)
    assert set(found.unsatisfiable) == {"default/pairs"}
    assert sum(tried) < 3000


def test_unequal_cards_do_not_make_it_explode(tried: list[int]) -> None:
    """Every card used differently: nothing is symmetric, and it is still decided."""
    results = [
        {
            "request": "r",
            "driver": "koordra.io",
            "pool": "node-1",
            "device": f"gpu-{n}",
            "shareID": f"s{n}",
            "consumedCapacity": {"memory": f"{n + 1}Gi", "cores": "0", "slots": "1"},
        }
        for n in range(8)
    ]
    held = allocated(claim("held"), {"devices": {"results": results}})
    wanted = claim(
        "a",
        request("gpu", count=4, capacity={"memory": "20Gi"}),
        request("nic", "nic", 4),
        configs=[joint("PCIeSwitch")],
    )
    found = plan([*device_classes(), *machine(), held, wanted])
    assert devices_of(found.allocations["default/a"])[:4] == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]
    assert sum(tried) < 35_000


def test_a_search_that_runs_out_says_undecided_and_never_no(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Search.run

    def short_of_breath(search: Search) -> Outcome:
        search.budget = 3
        return run(search)

    monkeypatch.setattr(Search, "run", short_of_breath)
    found = plan([*device_classes(), *machine(), joint_claim()])
    assert not found.unsatisfiable
    assert [reason.reason for reason in found.undecided["default/pairs"]] == ["SearchLimit"]


def test_nodes_of_one_form_are_searched_once(tried: list[int]) -> None:
    nodes = [entry for n in range(20) for entry in machine(name=f"node-{n:02}")]
    found = plan([*device_classes(), *nodes, joint_claim()])
    assert found.nodes == {"default/pairs": "node-00"}
    assert len(tried) == 1


def partitions(*sizes: int | None, of: int) -> list[Dict]:
    """One card cut into dedicated parts that take so much of one counter (None: of no counter); listed as
    given."""
    devices = [
        {
            "name": f"part-{number}",
            "consumesCounters": [
                {"counterSet": "card", "counters": {"slices": {"value": str(amount)}}}
                for amount in [size]
                if amount is not None
            ],
        }
        for number, size in enumerate(sizes)
    ]
    counters = [{"name": "card", "counters": {"slices": {"value": str(of)}}}]
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "parts.example.com", "nodeName": "node-1", "pool": pool}
    bodies: list[Dict] = [{"devices": devices}, {"sharedCounters": counters}]
    selector = {"cel": {"expression": 'device.driver == "parts.example.com"'}}
    return [
        node(),
        {"kind": "DeviceClass", "metadata": {"name": "part"}, "spec": {"selectors": [selector]}},
        *(
            {"kind": "ResourceSlice", "metadata": {"name": f"slice-{n}"}, "spec": {**spec, **body}}
            for n, body in enumerate(bodies)
        ),
    ]


def parts(*counts: int) -> Dict:
    asked = [
        {"name": f"r{n}", "exactly": {"deviceClassName": "part", "count": count}}
        for n, count in enumerate(counts)
    ]
    return claim("parts", *asked)


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize(
    ("sizes", "of", "counts", "expected"),
    [
        ([20, *[10] * 7], 70, (7,), [1, 2, 3, 4, 5, 6, 7]),
        ([20, *[10] * 7], 70, (3, 4), [1, 2, 3, 4, 5, 6, 7]),
        ([20, *[10] * 7], 80, (7,), [0, 1, 2, 3, 4, 5, 6]),
        ([1, 7, 2, 4, 3], 6, (3,), [0, 2, 4]),
        ([*[20] * 4, *[10] * 20], 119, (12,), None),
        ([*[20] * 4, *[10] * 20], 120, (12,), [*range(4, 16)]),
        ([0, 5, 5], 5, (2,), [0, 1]),
        ([0, 5, 5], 5, (3,), None),
        ([3, 3, None, None], 5, (3,), [0, 2, 3]),
    ],
)
def test_parts_that_leave_too_little_for_the_others_are_not_tried(
    sizes: list[int | None],
    of: int,
    counts: tuple[int, ...],
    expected: list[int] | None,
    policy: str,
    tried: list[int],
) -> None:
    found = plan([*partitions(*sizes, of=of), parts(*counts)], policy=policy)
    chosen = found.allocations.get("default/parts")
    names = None if chosen is None else sorted(int(name.removeprefix("part-")) for name in devices_of(chosen))
    assert names == (None if expected is None else sorted(expected))
    assert sum(tried) < 150


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_a_part_larger_than_its_card_is_not_tried_where_the_others_take_nothing(
    policy: str, tried: list[int]
) -> None:
    """Three tries: the first of the others, the same for the second place, and the second."""
    found = plan([*partitions(9, None, None, of=5), parts(2)], policy=policy)
    assert devices_of(found.allocations["default/parts"]) == ["part-1", "part-2"]
    assert tried == [3]


def test_one_value_for_all_needs_room_for_all(tried: list[int]) -> None:
    """Each request by itself finds devices of every root; only one root has enough for the four of them."""
    roots = [0, 0, 0, 1, 1, 1, 1, 2, 2]
    devices = [gpu(n, place=place(root)) for n, root in enumerate(roots)]
    constraint = {"matchAttribute": "resource.kubernetes.io/pcieRoot"}
    wanted = claim("a", *(request(f"r{n}") for n in range(4)), constraints=[constraint])
    found = plan([*device_classes(), node(), slice_of(devices), wanted])
    assert devices_of(found.allocations["default/a"]) == ["gpu-3", "gpu-4", "gpu-5", "gpu-6"]
    assert sum(tried) <= 10


def test_a_claim_that_is_too_large_goes_back_to_its_last_alternative(tried: list[int]) -> None:
    """kubernetes#130593: 32 devices at most, three times 20, 16 or 10 of them."""
    asked = [
        {
            "name": f"r{n}",
            "firstAvailable": [
                {"name": f"take-{count}", "deviceClassName": "part", "count": count} for count in (20, 16, 10)
            ],
        }
        for n in range(3)
    ]
    found = plan([*partitions(*[0] * 40, of=1), claim("parts", *asked)], policy="FirstFit")
    results = found.allocations["default/parts"]["devices"]["results"]
    assert {entry["request"] for entry in results} == {"r0/take-10", "r1/take-10", "r2/take-10"}
    assert sum(tried) < 1000


def model(*names: str) -> list[Dict]:
    expression = 'device.attributes["koordra.io"].model in {}'
    return [{"cel": {"expression": expression.format(list(names)).replace("'", '"')}}]


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("order", [("one", "many"), ("many", "one")])
def test_a_claim_that_is_too_large_with_one_alternative_is_tried_with_other_devices(
    order: Sequence[str], policy: str
) -> None:
    """With 20 and 12 the claim is too large. With 1 and 12 it is not, but that needs the second card of the
    first request."""
    cards = [gpu(n, place=place(n, per_numa=1), model="first") for n in range(2)]
    cards.append(gpu(2, place=place(1, per_numa=1), model="second"))
    cards += [gpu(n, place=place(9, per_numa=1), model="many") for n in range(3, 35)]
    either = {
        "one": {"name": "one", "deviceClassName": "gpu.koordra.io", "selectors": model("second")},
        "many": {
            "name": "many",
            "deviceClassName": "gpu.koordra.io",
            "count": 20,
            "selectors": model("many"),
        },
    }
    wanted = claim(
        "a",
        request("first", selectors=model("first")),
        {"name": "either", "firstAvailable": [either[name] for name in order]},
        request("rest", count=12, selectors=model("many")),
        constraints=[{"requests": ["first", "either/one"], "matchAttribute": "koordra.io/numaNode"}],
    )
    found = plan([*device_classes(), node(), slice_of(cards), wanted], policy=policy)
    assert devices_of(found.allocations["default/a"])[:2] == ["gpu-1", "gpu-2"]


def test_taking_everything_in_different_amounts_is_still_weighed() -> None:
    """Each card has room for one of the two, and the larger request fills the smaller card better."""
    cards = [gpu(0, memory="95Gi", place=place(0)), gpu(1, memory="110Gi", place=place(0))]
    wanted = claim(
        "a", request("small", capacity={"memory": "60Gi"}), request("large", capacity={"memory": "90Gi"})
    )
    found = plan([*device_classes(), node(), slice_of(cards), wanted])
    results = found.allocations["default/a"]["devices"]["results"]
    assert {entry["request"]: entry["device"] for entry in results} == {"small": "gpu-1", "large": "gpu-0"}


def test_taking_every_gpu_leaves_a_choice_of_nics() -> None:
    """The NIC is asked for by alternatives, so it is not settled by the GPU being the only one."""
    devices = [gpu(0, place=place(1)), nic(0, place=place(0)), nic(1, place=place(1))]
    either = [{"name": name, "deviceClassName": "nic.koordra.io"} for name in ("one", "other")]
    wanted = claim("a", request("gpu"), {"name": "nic", "firstAvailable": either})
    found = plan([*device_classes(), node(), slice_of(devices), wanted])
    assert devices_of(found.allocations["default/a"]) == ["gpu-0", "nic-1"]


def only(number: int) -> list[Dict]:
    return [{"cel": {"expression": f'device.attributes["koordra.io"].uuid == "GPU-{number}"'}}]


def test_shares_that_want_one_full_card_are_refused_without_a_search(tried: list[int]) -> None:
    """There is room for four halves on two cards, and three of them want the same one."""
    half = {"memory": "40Gi"}
    wanted = [request(f"r{n}", capacity=half, selectors=only(0)) for n in range(3)]
    other = request("other", capacity=half, selectors=only(1))
    found = plan([*device_classes(), *machine(2, 0), claim("a", *wanted, other)])
    assert set(found.unsatisfiable) == {"default/a"}
    assert sum(tried) == 0


def test_a_card_that_was_cleared_for_one_request_is_not_cleared_for_the_next(tried: list[int]) -> None:
    """The first request makes way on the first card for the second one, which cannot do so for the third."""
    asked = [request("any"), request("one", selectors=only(0)), request("other", selectors=only(0))]
    found = plan([*device_classes(), *machine(3, 0), claim("a", *asked)])
    assert set(found.unsatisfiable) == {"default/a"}
    assert sum(tried) == 0


def test_what_cannot_be_better_than_the_best_is_not_entered(tried: list[int]) -> None:
    found = plan([*device_classes(), *machine(8, 0), claim("a", request("g"), request("h"), request("i"))])
    assert devices_of(found.allocations["default/a"]) == ["gpu-0", "gpu-1", "gpu-2"]
    assert tried == [7]


def test_a_claim_for_everything_is_searched_once_however_unlike_the_cards_are(tried: list[int]) -> None:
    """Every choice leaves the same behind: the first is as good as any of the 120."""
    unlike = [
        gpu(n, place={"pcieSwitch": f"s{n * n % 5}", "numaNode": n % 3, "socket": 0}, model=f"m{n}")
        for n in range(5)
    ]
    found = plan(
        [*device_classes(), node(), slice_of(unlike), claim("a", *[request(f"r{n}") for n in range(5)])]
    )
    assert len(devices_of(found.allocations["default/a"])) == 5
    assert sum(tried) <= 20


def test_gpus_without_a_nic_in_their_scope_are_left_out_before_the_search(tried: list[int]) -> None:
    found = plan([*device_classes(), *moved_nic(), joint_claim()])
    assert set(found.unsatisfiable) == {"default/pairs"}
    assert sum(tried) <= 200


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_states_are_not_compared_where_the_first_way_is_the_answer(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In upstream's order as long as there are few dead ends, and where every choice leaves the same
    behind."""
    monkeypatch.delattr(Search, "_key")
    found = plan(
        [*device_classes(), *machine(2, 2), claim("a", request("g", count=2), request("n", "nic", 2))],
        policy=policy,
    )
    assert len(devices_of(found.allocations["default/a"])) == 4
