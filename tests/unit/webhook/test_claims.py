"""Validation and native translation of claims."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from koordra.api.devices import Attribute
from koordra.cel.selectors import DeviceFacts, matches
from koordra.controller.webhook import handlers, native
from koordra.controller.webhook.claims import AskedDevices
from koordra.controller.webhook.review import AdmissionRequest
from koordra.errors import InvalidInput
from tests.unit.webhook.cluster import Known, claim, parameters, request, template

CLASSES = Known().classes()


def pair(gpus: int = 1, nics: int = 1, **joint: Any) -> dict[str, Any]:
    fields = {"scope": "PCIeSwitch", **joint}
    return claim(
        [request("gpu", count=gpus), request("nic", "nic.koordra.io", count=nics)],
        [parameters("JointAllocation", ["gpu", "nic"], **fields)],
    )


def problems(obj: dict[str, Any]) -> list[InvalidInput]:
    return AskedDevices.of(obj).problems()


def warnings(obj: dict[str, Any]) -> list[str]:
    return AskedDevices.of(obj).warnings()


WRONG = {
    "wrong-type": [parameters("RdmaConfig", ["gpu"], memlock=7)],
    "misspelt-word": [parameters("JointAllocation", scope="PCIESwitch")],
    "missing-scope": [parameters("JointAllocation")],
    "out-of-range": [parameters("GpuConfig", memoryPercent=101)],
    "no-such-kind": [parameters("GpuConfg")],
    "old-version": [
        {"opaque": {"driver": "koordra.io", "parameters": {"apiVersion": "v1", "kind": "GpuConfig"}}}
    ],
    "no-object": [{"opaque": {"driver": "koordra.io", "parameters": [1]}}],
    "unknown-request": [parameters("GpuConfig", ["gpus"], priority=1)],
    "two-policies": [
        parameters("PlacementPolicy", node="Binpack"),
        parameters("PlacementPolicy", node="Spread"),
    ],
    "two-configs": [
        parameters("GpuConfig", ["gpu"], priority=1),
        parameters("GpuConfig", ["gpu"], priority=2),
    ],
    "several-at-once": [parameters("GpuConfig", priority=1000), parameters("RdmaConfig", mode="Alone")],
}


def test_messages_name_object_field_and_remedy(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, config in WRONG.items():
        obj = claim([request("gpu")], config, name=name)
        found = problems(obj)
        assert found, name
        lines += [str(problem) for problem in found]
        inside = problems(template(obj, name))
        assert [str(problem) for problem in inside] == [
            str(problem).replace("ResourceClaim ", "ResourceClaimTemplate ").replace(" spec.", " spec.spec.")
            for problem in found
        ]
    golden("webhook/validation.txt", "\n".join(lines) + "\n")


def test_a_misspelt_field_is_told_with_the_right_spelling() -> None:
    (problem,) = problems(claim([request("gpu")], [parameters("GpuConfig", memoryPercnt=5)]))
    assert "GpuConfig has no field 'memoryPercnt' (did you mean memoryPercent?)" in str(problem)


def test_good_parameters_and_other_drivers_pass() -> None:
    other = {"opaque": {"driver": "other.example.com", "parameters": {"anything": 1}}}
    assert not problems(pair())
    assert not problems(claim([request("gpu")], [other]))
    two = [parameters("GpuConfig", ["gpu"], priority=1), parameters("GpuConfig", priority=2)]
    several = [parameters("JointAllocation", scope=scope) for scope in ("PCIeRoot", "Socket")]
    assert not problems(claim([request("gpu")], several))
    assert not problems(claim([request("gpu"), request("more")], two))


@pytest.mark.parametrize(
    ("memory", "question"),
    [
        ("20", "20 is 20 bytes of memory, which counts as 1Mi; was 20Gi meant?"),
        ("500Ki", "500Ki is 512000 bytes of memory, which counts as 1Mi"),
        ("1Mi", ""),
        ("0", ""),
        ("twenty", ""),
    ],
)
def test_a_memory_request_without_a_unit_is_questioned(memory: str, question: str) -> None:
    asked = request("gpu")
    asked["exactly"]["capacity"] = {"requests": {"memory": memory, "cores": "20"}}
    told = [f"spec.devices.requests[0].exactly.capacity.requests.memory: {question}"] if question else []
    assert warnings(claim([asked])) == told


@pytest.mark.parametrize(
    ("cores", "refused"), [("500m", True), ("1m", True), ("-1", True), ("0", False), ("1", False)]
)
def test_less_than_the_smallest_share_is_refused_in_words(cores: str, refused: bool) -> None:
    asked = request("gpu")
    asked["exactly"]["capacity"] = {"requests": {"memory": "20Gi", "cores": cores}}
    found = problems(claim([asked]))
    assert bool(found) is refused
    for one in found:
        assert (
            f"spec.devices.requests[0].exactly.capacity.requests.cores: {cores} is below 1%, the smallest share"
            in str(one)
        )


def test_fields_without_effect_are_told_where_they_stand() -> None:
    config = [
        parameters("GpuConfig", ["gpu"], priority=1, coresPolicy="Hard"),
        parameters("GpuConfig", isolation="none"),
    ]
    first, second = warnings(claim([request("gpu")], config))
    assert first.startswith("spec.devices.config[0].opaque.parameters.coresPolicy has no effect")
    assert second.startswith("spec.devices.config[0].opaque.parameters.priority has no effect")
    template = {"kind": "ResourceClaimTemplate", "spec": {"spec": claim([request("gpu")], config)["spec"]}}
    answer = handlers.validate(
        AdmissionRequest("u", "CREATE", "ResourceClaimTemplate", "", template), Known(), False
    )
    assert len(answer.warnings) == 2
    assert not answer.problems


def gold(**fields: Any) -> Known:
    """koordra's classes, and one with a policy of isolation."""
    config = [parameters("GpuConfig", **fields)]
    return Known({"kind": "DeviceClass", "metadata": {"name": "gold"}, "spec": {"config": config}})


SHARE = request("gpu", "gold", capacity={"requests": {"memory": "10Gi"}})


def asks(of: dict[str, Any], known: Known) -> Any:
    return handlers.validate(AdmissionRequest("u", "CREATE", str(of["kind"]), "", of), known, False)


@pytest.mark.parametrize("wrap", [lambda of: of, template], ids=["claim", "template"])
def test_a_class_says_what_may_keep_its_shares(wrap: Callable[[Any], Any]) -> None:
    only = gold(allowedIsolation=["mps", "limiter"])
    (problem,) = asks(
        wrap(claim([SHARE], [parameters("GpuConfig", ["gpu"], isolation="none")])), only
    ).problems
    assert "request gpu: isolation: requested none, the class allows only mps, limiter" in str(problem)
    assert problem.field.endswith("devices.config[0].opaque.parameters.isolation")
    for fine in (
        parameters("GpuConfig", isolation="limiter"),
        parameters("GpuConfig", exclusive=True, isolation="none"),
    ):
        assert not asks(wrap(claim([SHARE], [fine])), only).problems
    alone = gold(allowedIsolation=["mps"], exclusive=True)
    assert not asks(wrap(claim([SHARE], [parameters("GpuConfig", isolation="none")])), alone).problems
    whole = claim([request("gpu", "gold")], [parameters("GpuConfig", isolation="none")])
    assert not asks(wrap(whole), only).problems


def test_an_instance_by_mps_is_refused_before_it_waits() -> None:
    def problems(word: str) -> Any:
        says = [parameters("GpuConfig", isolation=word)]
        return asks(claim([request("slice", "mig.koordra.io")], says), Known()).problems

    (problem,) = problems("mps")
    assert "requested mps, which is done to a whole card, and this is an MIG instance" in str(problem)
    assert not problems("mig")


@pytest.mark.parametrize("wrap", [lambda of: of, template], ids=["claim", "template"])
def test_several_cards_by_mps_are_refused_before_they_wait(wrap: Callable[[Any], Any]) -> None:
    """Two devices of one request are two cards. By a word of the class, or for whole cards, as well."""

    def problems(amount: dict[str, Any], known: Known, **says: Any) -> tuple[Any, ...]:
        of = claim([request("gpu", "gold", **amount)], [parameters("GpuConfig", **says)])
        return tuple(asks(wrap(of), known).problems)

    part = {"capacity": {"requests": {"memory": "10Gi"}}}
    (problem,) = problems({"count": 2, **part}, gold(), isolation="mps")
    assert problem.problem == (
        "isolation mps: requested 2 cards, and a process is the client of one MPS daemon, which is one card's"
    )
    assert problem.field.endswith("devices.requests[0].exactly.count")
    assert problem.remedy == "make a claim for each card, for containers of their own, or ask for whole cards"
    assert problems({"count": 2, **part}, gold(isolation="mps"))
    assert problems({"count": 2, **part}, gold(defaultIsolation="mps"))
    for fine in ({"count": 1, **part}, part, {"allocationMode": "All", **part}):
        assert not problems(fine, gold(), isolation="mps")
    for word in ("limiter", "Auto"):
        assert not problems({"count": 2, **part}, gold(), isolation=word)
    assert not problems({"count": 2}, gold(defaultIsolation="mps"))
    whole = claim([request("gpu", count=2)], [parameters("GpuConfig", isolation="mps")])
    assert len(asks(wrap(whole), Known()).problems) == 1
    nics = [
        request("gpu", **part),
        request("nic", "nic.koordra.io", count=2),
        request("other", "gold", count=2),
    ]
    assert not asks(wrap(claim(nics, [parameters("GpuConfig", isolation="mps")])), gold()).problems


def test_a_word_of_the_class_stands_above_the_claims_and_is_told() -> None:
    answer = asks(claim([SHARE], [parameters("GpuConfig", isolation="none")]), gold(isolation="limiter"))
    assert not answer.problems
    assert answer.warnings == (
        "spec.devices.config[0].opaque.parameters.isolation: none is not what request gpu gets: its class says limiter",
    )


def test_a_mode_of_the_class_stands_above_the_claims_and_is_told() -> None:
    config = [parameters("RdmaConfig", mode="Shared")]
    known = Known({"kind": "DeviceClass", "metadata": {"name": "gold"}, "spec": {"config": config}})
    answer = asks(claim([request("nic", "gold")], [parameters("RdmaConfig", mode="Exclusive")]), known)
    assert not answer.problems
    assert answer.warnings == (
        "spec.devices.config[0].opaque.parameters.mode: Exclusive is not what request nic gets: its class says Shared",
    )
    assert not asks(claim([request("nic", "gold")], config), known).warnings


@pytest.mark.parametrize(
    ("published", "serves"),
    [
        ({"isolationNone": False, "isolationLimiter": True, "isolationMps": True}, True),
        ({"isolationNone": False, "isolationLimiter": True}, False),
        ({"isolationNone": True}, False),
        ({}, True),
    ],
)
def test_in_native_mode_a_selector_leaves_out_nodes_that_do_not_allow_the_isolation(
    published: dict[str, bool], serves: bool
) -> None:
    """kube-scheduler reads no policies."""
    asked = claim(
        [request("gpu"), request("nic", "nic.koordra.io")],
        [parameters("GpuConfig", ["gpu"], isolation="mps")],
    )
    made = native.translate(asked, CLASSES)
    of_gpu, of_nic = (one["exactly"] for one in devices(made)["requests"])
    (selector,) = of_gpu["selectors"]
    assert "selectors" not in of_nic
    attributes = {f"koordra.io/{name}": Attribute("bool", value) for name, value in published.items()}
    attributes["koordra.io/type"] = Attribute("string", "gpu")
    assert matches(selector["cel"]["expression"], DeviceFacts("koordra.io", True, attributes, {})) is serves
    assert native.translate(made.object, CLASSES).object == made.object, "said once"
    whole = claim([request("gpu")], [parameters("GpuConfig", isolation="none")])
    assert native.translate(whole, CLASSES).object is whole


@pytest.mark.parametrize(
    ("of_class", "of_claim", "word"),
    [
        ({"isolation": "mps"}, None, "Mps"),
        ({"isolation": "mps"}, {"isolation": "limiter"}, "Mps"),
        ({"allowedIsolation": ["hami-core", "mps"]}, None, "HamiCore"),
        ({"allowedIsolation": ["none"]}, None, "None"),
        ({"defaultIsolation": "mps"}, {"isolation": "limiter"}, "Limiter"),
        ({"priority": 1}, None, None),
    ],
)
def test_in_native_mode_the_classes_word_is_a_selector_too(
    of_class: dict[str, Any], of_claim: dict[str, Any] | None, word: str | None
) -> None:
    """Otherwise kube-scheduler sends the claim to a node that refuses it, and there it stays."""
    own = [parameters("GpuConfig", **of_claim)] if of_claim else []
    made = native.translate(claim([SHARE], own), gold(**of_class).classes())
    found = [one["cel"]["expression"] for one in devices(made)["requests"][0]["exactly"].get("selectors", ())]
    assert [f".isolation{word}" in one for one in found] == ([True] if word else [])
    assert native.translate(made.object, gold(**of_class).classes()).object is made.object


def test_in_native_mode_a_part_of_a_nic_is_nobodys_alone() -> None:
    alone = [parameters("RdmaConfig", mode="Exclusive")]
    for amount in ({"share": "10"}, {"koordra.io/share": "10"}):
        asked = claim([request("nic", "nic.koordra.io", capacity={"requests": amount})], alone)
        (problem,) = native.translate(asked, CLASSES).problems
        assert "mode: in native mode nobody keeps the rest of the NIC of request nic free" in str(problem)
    part = request("part", "nic.koordra.io", capacity={"requests": {"share": "10"}})
    for fine in (
        claim([request("nic", "nic.koordra.io")], alone),
        claim(
            [request("nic", "nic.koordra.io"), part], [parameters("RdmaConfig", ["nic"], mode="Exclusive")]
        ),
        claim([part], [parameters("RdmaConfig", mode="Shared")]),
    ):
        assert not native.translate(fine, CLASSES).problems


@pytest.mark.parametrize("wrap", [lambda of: of, template], ids=["claim", "template"])
def test_what_draws_past_a_limit_is_a_classs_to_give(wrap: Callable[[Any], Any]) -> None:
    asked = parameters("GpuConfig", ["gpu"], isolation="limiter", driverCapabilities=["compute", "graphics"])
    (problem,) = asks(wrap(claim([SHARE], [asked])), gold()).problems
    assert problem.field.endswith("devices.config[0].opaque.parameters.driverCapabilities")
    assert "graphics would take memory past the limit (limiter)" in str(problem)
    assert not asks(wrap(claim([SHARE], [asked])), gold(driverCapabilities=["all"])).problems
    assert not asks(wrap(claim([request("gpu", "gold")], [asked])), gold()).problems, "a whole card"
    silent = parameters("GpuConfig", driverCapabilities=["graphics"])
    assert not asks(wrap(claim([SHARE], [silent])), gold()).problems, (
        "the node may give shares without limits"
    )


@pytest.mark.parametrize("named_first", [True, False])
def test_the_entry_by_name_counts_wherever_it_stands(named_first: bool) -> None:
    said = [parameters("GpuConfig", ["gpu"], isolation="none"), parameters("GpuConfig", isolation="mps")]
    (problem,) = asks(
        claim([SHARE], said if named_first else said[::-1]), gold(allowedIsolation=["mps"])
    ).problems
    assert "requested none, the class allows only mps" in str(problem)
    assert problem.field.endswith(f"config[{0 if named_first else 1}].opaque.parameters.isolation")


def test_the_policy_of_isolation_is_a_class_s_to_say() -> None:
    config = [parameters("GpuConfig", allowedIsolation=["none"], defaultIsolation="none")]
    (problem,) = problems(claim([request("gpu")], config))
    assert "allowedIsolation: is for the operator to say" in str(problem)
    assert not problems({"kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {"config": config}})


def test_device_classes_are_checked_too() -> None:
    spec = {"config": [parameters("GpuConfig", isolaton="mps")]}
    (problem,) = problems({"kind": "DeviceClass", "metadata": {"name": "x"}, "spec": spec})
    assert "isolaton" in str(problem)
    assert problem.field == "spec.config[0].opaque.parameters.isolaton"


@pytest.mark.parametrize(
    ("devices", "field"),
    [
        (1, "spec.devices: is not an object"),
        ({"config": 3}, "spec.devices.config: is not a list"),
        ({"config": [None, {"opaque": 1}]}, "spec.devices.config[1].opaque: is not an object"),
        ({"requests": [1]}, "spec.devices.requests[0]: is not an object"),
        (
            {
                "requests": [{"name": "gpu", "exactly": {"capacity": 3, "deviceClassName": []}}],
                "config": [parameters("GpuConfig", isolation="none")],
            },
            "spec.devices.requests[0].exactly.capacity: is not an object",
        ),
    ],
)
def test_malformed_claims_are_refused_by_name_and_field(devices: Any, field: str) -> None:
    obj = {"kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"devices": devices}}
    with pytest.raises(InvalidInput) as refused:
        asks(obj, Known())
    assert str(refused.value).startswith(f"ResourceClaim x: {field}")


def test_a_claim_without_devices_is_left_to_the_api_server() -> None:
    obj = {"kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": {"devices": None}}
    assert problems(obj) == []
    assert native.translate(obj, CLASSES).object is obj


def test_a_claim_without_requests_is_left_to_the_api_server() -> None:
    """It refuses the claim, with words of its own."""
    obj = claim([], [parameters("GpuConfig", isolation="none")])
    obj["spec"]["devices"]["requests"] = None
    made = native.translate(obj, CLASSES)
    assert (made.problems, made.object) == ((), obj)


def devices(translated: native.Translated) -> dict[str, Any]:
    found: dict[str, Any] = translated.object["spec"]["devices"]
    return found


@pytest.mark.parametrize(
    ("scope", "attribute"),
    [
        ("PCIeSwitch", "koordra.io/pcieSwitch"),
        ("PCIeRoot", "resource.kubernetes.io/pcieRoot"),
        ("NUMANode", "koordra.io/numaNode"),
        ("Socket", "koordra.io/socket"),
    ],
)
def test_one_pair_is_one_constraint(scope: str, attribute: str) -> None:
    made = native.translate(pair(scope=scope), CLASSES)
    assert devices(made)["constraints"] == [{"requests": ["gpu", "nic"], "matchAttribute": attribute}]
    assert not made.problems
    assert not made.warnings


def test_the_whole_node_needs_no_constraint() -> None:
    obj = pair(scope="Node")
    assert native.translate(obj, CLASSES).object is obj


def test_pairs_are_split_into_requests_of_one_device(golden: Callable[[str, str], None]) -> None:
    import yaml

    obj = pair(2, 3)
    obj["spec"]["devices"]["constraints"] = [{"requests": ["nic"], "matchAttribute": "koordra.io/rail"}]
    obj["spec"]["devices"]["config"].append(parameters("RdmaConfig", ["nic"], mode="Exclusive"))
    before = copy.deepcopy(obj)
    made = native.translate(obj, CLASSES)
    assert obj == before
    golden("webhook/native-pairs.yaml", yaml.safe_dump(made.object, sort_keys=False))
    assert [text.split(":")[0] for text in made.warnings] == [
        "request gpu was split into gpu-0 to gpu-1 for native mode",
        "request nic was split into nic-0 to nic-2 for native mode",
    ]
    again = native.translate(made.object, CLASSES)
    assert devices(again) == devices(made)


def test_a_count_that_the_api_server_refuses_is_left_to_it() -> None:
    assert not native.translate(pair(-1, -1), CLASSES).problems


def test_a_count_below_one_does_not_make_up_for_too_large_a_one() -> None:
    """Validation comes after mutating webhooks: 10,000 devices and -9,990 are ten only by their sum."""
    kinds = {"gpu": "gpu.koordra.io", "nic": "nic.koordra.io"}
    asked = [
        request(f"{name}-{number}", kind, count=count)
        for name, kind in kinds.items()
        for number, count in (("many", 10_000), ("less", -9_990))
    ]
    made = native.translate(claim(asked, [parameters("JointAllocation", scope="PCIeRoot")]), CLASSES)
    (problem,) = made.problems
    assert "20002 requests after pairs were split; 32 fit" in str(problem)


@pytest.mark.parametrize("long", ["requests", "config", "names", "alternatives"])
def test_lists_that_the_api_server_refuses_for_their_length_are_left_to_it(long: str) -> None:
    """Everything here is looked at for each of everything else."""
    many = {name: 33 if name == long else 2 for name in ("requests", "config", "names", "alternatives")}
    body = {"deviceClassName": "gpu.koordra.io"}
    alternatives = [{"name": str(number), **body} for number in range(many["alternatives"])]
    asked = [request(str(number)) for number in range(many["requests"] - 1)]
    asked.append({"name": "last", "firstAvailable": alternatives})
    named = ["last"] * many["names"]
    config = [parameters("GpuConfig", isolation="limiter") | {"requests": named}] * many["config"]
    obj = claim(asked, config)
    assert native.translate(obj, CLASSES).object is obj


def test_together_is_one_constraint_over_all() -> None:
    made = native.translate(pair(2, 2, pairing="Together"), CLASSES)
    assert devices(made)["constraints"] == [
        {"requests": ["gpu", "nic"], "matchAttribute": "koordra.io/pcieSwitch"}
    ]
    assert len(devices(made)["requests"]) == 2


def test_templates_are_translated_one_level_deeper() -> None:
    made = native.translate(template(pair()), CLASSES)
    assert made.object["spec"]["spec"]["devices"]["constraints"]


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (pair(enforcement="Preferred"), "can only be Required"),
        (pair(2, 2, pairing="PerGroup"), "PerGroup"),
        (pair(2, 1), "2 GPUs need a NIC each"),
        (claim([request("gpu")], [parameters("PlacementPolicy", node="Spread")]), "no PlacementPolicy"),
        (claim([request("gpu")], [parameters("GpuConfig", memoryPercent=5)]), "capacity.requests.memory"),
        (claim([request("gpu")], [parameters("GpuConfig", tflops=5)]), "capacity.requests.cores"),
        (
            claim(
                [request("gpu", allocationMode="All"), request("nic", "nic.koordra.io")],
                [parameters("JointAllocation", scope="PCIeRoot")],
            ),
            "allocationMode All",
        ),
        (
            claim(
                [request("gpu", "special"), request("nic", "nic.koordra.io")],
                [parameters("JointAllocation", scope="PCIeRoot")],
            ),
            "not known which",
        ),
        (pair(20, 20), "32 fit"),
        (pair(10**18, 10**18), "2000000000000000000 requests after pairs were split; 32 fit"),
    ],
)
def test_what_native_mode_cannot_say_is_refused(obj: dict[str, Any], words: str) -> None:
    made = native.translate(obj, CLASSES)
    assert words in "; ".join(str(problem) for problem in made.problems)
    assert made.object is obj


def test_selectors_beyond_the_api_servers_limits_are_refused_early() -> None:
    def with_selector(expression: str) -> dict[str, Any]:
        asked = request("gpu")
        asked["exactly"]["selectors"] = [
            {"cel": {"expression": 'device.driver == "koordra.io"'}},
            {"cel": {"expression": expression}},
        ]
        return claim([asked], [parameters("GpuConfig", priority=1)])

    for expression, why in (
        ("(" * 250 + "true" + ")" * 250, "expression recursion limit exceeded: 250"),
        ("true" + " " * 10240, "Too long: may not be more than 10240 bytes"),
        ("lists.range(2000).all(a, lists.range(2000).all(b, true))", "too complex, exceeds cost limit"),
        ("device.serial", "undeclared reference to 'device"),
    ):
        (problem,) = problems(with_selector(expression))
        assert why in str(problem)
        assert "spec.devices.requests[0].exactly.selectors[1].cel.expression" in str(problem)
    assert not problems(with_selector("(" * 249 + "true" + ")" * 249))

    alternatives = claim(
        [{"name": "gpu", "firstAvailable": [{"name": "a", "selectors": [{"cel": {"expression": "1"}}]}]}]
    )
    (problem,) = problems(alternatives)
    assert "requests[0].firstAvailable[0].selectors[0].cel.expression: must evaluate to bool" in str(problem)

    device_class = {
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"selectors": [{"cel": {"expression": "("}}]},
    }
    (problem,) = problems(device_class)
    assert "DeviceClass c" in str(problem)
    assert "spec.selectors[0].cel.expression" in str(problem)


def test_a_backend_that_no_node_has_now_is_admitted_with_a_warning() -> None:
    def asked(isolation: str, published: frozenset[str] | None, amount: Any = SHARE) -> Any:
        of = claim([amount], [parameters("GpuConfig", isolation=isolation)])
        request_ = AdmissionRequest("u", "CREATE", "ResourceClaim", "", of)
        answer = handlers.validate(request_, gold(), False, lambda: published)
        assert not answer.problems
        return answer.warnings

    limited = frozenset({"limiter"})
    (warning,) = asked("mps", limited)
    assert warning.startswith(
        "request gpu: no node keeps shares by mps now; it waits with BackendUnavailable"
    )
    assert asked("mps", limited | {"mps"}) == asked("Auto", limited) == asked("mps", None) == ()
    assert "by mps or limiter or hami-core or timeslicing or none now" in asked("Auto", frozenset())[0]
    assert asked("mps", limited, request("gpu", "gold")) == (), "a whole card"
