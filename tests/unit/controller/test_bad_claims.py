"""Claims that cannot be meant are told so, once, and disturb nobody."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.controller.allocation.pass_context import REFUSED_PAUSE
from koordra.controller.cache.claim_index import ClaimIndex
from koordra.controller.cache.pod_index import PodIndex
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reconcile.unplanned import LACKS_FOR
from koordra.controller.reporting.claim_events import ALLOCATED, CLAIM_MISSING
from koordra.controller.reporting.event_dedup import RETOLD
from koordra.controller.reporting.event_recorder import event_name
from koordra.errors import ApiUnreachable, KoordraError
from tests.fakes.joint_cluster import JointCluster, claim
from tests.fakes.kube_api import Write


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device_class": "nonsense.koordra.io"}, "DeviceClass nonsense.koordra.io does not exist"),
        ({"memory": "0"}, "memory"),
        ({"count": 99}, "99"),
    ],
)
def test_bad_claims_are_told_what_is_wrong_and_disturb_nobody(asked: dict[str, object], said: str) -> None:
    cluster = JointCluster()
    cluster.claim("bad", **asked)
    cluster.claim("good")
    cluster.pod("p", "bad", priority=1000)
    cluster.pod("q", "good")
    cluster.settle(passes=4)
    assert cluster.allocation("good") is not None
    told = [happening for happening in cluster.told if happening.reason != ALLOCATED]
    assert len(told) == 1, "told once"
    assert said in told[0].message
    assert [objects.name(about) for about in told[0].about] == ["bad", "p"]
    assert told[0].warning


def test_a_defect_met_while_one_claim_is_written_keeps_no_other_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = JointCluster()
    cluster.claim("bad")
    cluster.claim("good")
    cluster.pod("p", "bad", priority=1000)
    cluster.pod("q", "good")
    tries = 0

    def before(write: Write) -> None:
        nonlocal tries
        if write.name == "bad" and write.verb == "patch":
            tries += 1
            raise ValueError("cannot be encoded")

    cluster.api.before = before
    assert cluster.settle() == REFUSED_PAUSE
    assert cluster.allocation("good") is not None
    assert tries == 1, "not in every pass"
    assert capsys.readouterr().err.count("group_failed") == 1
    cluster.pass_time(REFUSED_PAUSE)
    cluster.settle()
    assert tries == 2
    cluster.api.before = lambda write: None
    cluster.pass_time(REFUSED_PAUSE)
    cluster.settle()
    assert cluster.allocation("bad") is not None


def refusing(method: Any, name: str) -> Any:
    """A listener of the cache that cannot take one object in."""

    def taken(self: Any, key: str, before: Any, now: Any) -> None:
        if key.endswith(name):
            raise ValueError("cannot be taken in")
        method(self, key, before, now)

    return taken


def test_an_object_that_an_index_cannot_take_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PodIndex, "on_pod", refusing(PodIndex.on_pod, "poison"))
    cluster = JointCluster()
    for name in ("poison", "good"):
        cluster.claim(name)
        cluster.pod(name, name)
    cluster.settle()
    assert cluster.allocation("good") is not None
    assert "object=default/poison" in capsys.readouterr().err


def test_nothing_is_given_out_while_nobody_knows_what_a_claim_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else is taken in meanwhile."""
    cluster = JointCluster()
    with monkeypatch.context() as patch:
        patch.setattr(ClaimIndex, "on_claim", refusing(ClaimIndex.on_claim, "poison"))
        cluster.start_again()
        for name in ("poison", "good"):
            cluster.claim(name)
        cluster.pod("q", "good")
        for _ in range(3):
            with pytest.raises(KoordraError, match="default/poison was not taken in"):
                cluster.settle(passes=1)
    assert cluster.allocation("good") is None
    cluster.api.delete(RESOURCE_CLAIMS, "poison")
    cluster.settle()
    assert cluster.allocation("good") is not None


@pytest.mark.parametrize("part", ["_settle_pending_writes", "_take_feedback", "_report_conflicts", "_ungate"])
def test_a_part_of_the_pass_that_fails_is_told_once_and_keeps_nobody_waiting(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_self: Reconciler) -> None:
        raise ValueError("a defect")

    fails.__qualname__ = part
    cluster = JointCluster()
    with monkeypatch.context() as patch:
        patch.setattr(Reconciler, part, fails)
        cluster.claim("good")
        cluster.pod("q", "good", gates=[names.JOINT_GATE])
        assert cluster.settle(passes=4) == REFUSED_PAUSE
    assert cluster.allocation("good") is not None
    assert capsys.readouterr().err.count("part_of_pass_failed") == 1
    cluster.settle()
    assert not cluster.api.get(PODS, "q")["spec"].get("schedulingGates")


@pytest.mark.parametrize("error", [ApiUnreachable("away"), AssertionError("the state is wrong")])
def test_what_concerns_everybody_ends_the_pass(error: Exception) -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")

    def before(write: Write) -> None:
        raise error

    cluster.api.before = before
    with pytest.raises(type(error)):
        cluster.settle()


def test_malformed_cel_and_unknown_parameters_are_told_on_the_claim() -> None:
    cluster = JointCluster()
    selector = claim("cel")
    selector["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.("}}]
    parameters = claim("opaque")
    parameters["spec"]["devices"]["config"] = [
        {
            "opaque": {
                "driver": "koordra.io",
                "parameters": {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolatoin": "none"},
            }
        }
    ]
    for entry in (selector, parameters):
        cluster.api.create(RESOURCE_CLAIMS, entry)
        cluster.pod(f"p-{objects.name(entry)}", objects.name(entry))
    cluster.settle()
    told = {objects.name(happening.about[0]): happening for happening in cluster.told}
    assert told["cel"].reason == "SelectorError"
    assert "isolatoin" in told["opaque"].message
    assert "isolation" in told["opaque"].message


def test_two_drivers_in_one_claim_are_refused_with_the_remedy() -> None:
    cluster = JointCluster()
    theirs = {"selectors": [{"cel": {"expression": 'device.driver == "tpu.example.org"'}}]}
    cluster.api.create(DEVICE_CLASSES, {"metadata": {"name": "tpu.example.org"}, "spec": theirs})
    mixed = claim("mixed")
    mixed["spec"]["devices"]["requests"].append(
        {"name": "tpu", "exactly": {"deviceClassName": "tpu.example.org", "count": 1}}
    )
    cluster.api.create(RESOURCE_CLAIMS, mixed)
    cluster.pod("p", "mixed")
    cluster.settle()
    assert cluster.reasons() == ["ForeignDriver"]
    assert "tpu.example.org" in cluster.told[0].message


def test_a_class_that_appears_later_unlocks_the_claim() -> None:
    cluster = JointCluster()
    cluster.api.delete(DEVICE_CLASSES, names.CLASS_GPU)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.reasons() == ["SelectorMismatch"]
    from tests.fakes.joint_cluster import device_class

    cluster.api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    cluster.settle()
    assert cluster.allocation("a") is not None


def _with(name: str, **exactly: object) -> dict[str, object]:
    made = claim(name)
    made["spec"]["devices"]["requests"][0]["exactly"].update(exactly)
    return made


def _with_parameters(name: str, **parameters: object) -> dict[str, object]:
    made = claim(name)
    full = {"apiVersion": "koordra.io/v1alpha1", **parameters}
    made["spec"]["devices"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": full}}]
    return made


@pytest.mark.parametrize(
    ("bad", "reason", "says"),
    [
        (
            _with("bad", deviceClassName="no.koordra.io"),
            "SelectorMismatch",
            "create it, or use one of koordra's",
        ),
        (_with("bad", count=-1), "ConstraintViolated", "use a count of 1 or more"),
        (_with("bad", count=99), "ExceedsDevice", "99"),
        (_with("bad", capacity={"requests": {"memory": "lots"}}), "ConstraintViolated", "lots"),
        (_with("bad", capacity={"requests": {"memroy": "1Gi"}}), "ExceedsDevice", "did you mean memory?"),
        (_with("bad", selectors=[{"cel": {"expression": "device.("}}]), "SelectorError", "device.("),
        (_with("bad", tolerations=[{"operator": "Sometimes"}]), "ConstraintViolated", "use Exists or Equal"),
        (_with_parameters("bad", kind="JointAllocation", scoop="Node"), "ConstraintViolated", "scope"),
        (_with_parameters("bad", kind="Unheard"), "ConstraintViolated", "Unheard"),
    ],
)
def test_bad_input_of_every_kind_is_told_with_what_to_do(
    bad: dict[str, object], reason: str, says: str
) -> None:
    cluster = JointCluster()
    cluster.api.create(RESOURCE_CLAIMS, bad)
    cluster.pod("p", "bad")
    cluster.claim("good")
    cluster.pod("q", "good")
    cluster.settle()
    assert cluster.allocation("good") is not None, "one bad claim must not keep the others waiting"
    told = [entry for entry in cluster.told if objects.name(entry.about[0]) == "bad"]
    assert [entry.reason for entry in told] == [reason]
    assert says in told[0].message


def test_the_longest_names_make_events_that_the_server_takes() -> None:
    longest = "a" * 253
    cluster = JointCluster()
    cluster.claim(longest, memory="200Gi")
    cluster.pod("b" * 253, longest)
    cluster.settle()
    (told,) = cluster.told
    assert len(told.message) <= 1024
    assert all(len(event_name(about, told.reason)) <= 253 for about in told.about)


def test_slices_and_rules_that_cannot_be_read_say_so_on_the_claims_that_wait_for_them() -> None:
    cluster = JointCluster(nodes=1)
    cluster.api.edit(
        RESOURCE_SLICES,
        "n0-koordra",
        lambda found: found["spec"]["devices"][0].update(capacity={"memory": {"value": "x"}}),
    )
    cluster.claim("c")
    cluster.pod("p", "c")
    cluster.settle()
    assert cluster.reasons() == ["PoolIncomplete"]
    assert "ResourceSlice n0-koordra: spec.devices[0].capacity[memory]" in cluster.told[0].message
    cluster.api.edit(
        RESOURCE_SLICES,
        "n0-koordra",
        lambda found: found["spec"]["devices"][0].update(capacity={"memory": {"value": "y"}}),
    )
    cluster.pass_time(60)
    cluster.settle()
    assert "'y' is not a quantity" in cluster.told[-1].message
    rules = JointCluster(nodes=1)
    rules.api.create(DEVICE_TAINT_RULES, {"metadata": {"name": "odd"}, "spec": {"taint": "x"}})
    rules.claim("c")
    rules.pod("p", "c")
    rules.settle()
    assert "odd" in rules.told[0].message


def test_an_allocation_that_cannot_be_read_concerns_its_own_node() -> None:
    cluster = JointCluster(nodes=2)
    cluster.claim("odd")
    strange = {
        "request": "gpu",
        "driver": "koordra.io",
        "pool": "n0",
        "device": "gpu-0",
        "consumedCapacity": "much",
    }
    pinned = {"key": "metadata.name", "operator": "In", "values": ["n0"]}
    allocation = {
        "allocationTimestamp": "2026-11-21T00:00:00Z",
        "devices": {"results": [strange]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [pinned]}]},
    }
    cluster.api.edit(
        RESOURCE_CLAIMS,
        "odd",
        lambda found: found.update(status={"allocation": allocation, "reservedFor": [{"uid": "gone"}]}),
    )
    cluster.claim("c")
    cluster.pod("p", "c")
    cluster.settle()
    assert cluster.node_of("c") == "n1"


def test_a_pod_that_is_held_is_told_which_claims_it_lacks_once_they_have_had_time_to_come() -> None:
    """kube-scheduler says nothing of a pod that is gated."""
    cluster = JointCluster()
    template = {"name": "own", "resourceClaimTemplateName": "single"}
    named = {"name": "a", "resourceClaimName": "a"}
    for name, gates in (("held", [names.JOINT_GATE]), ("queued", [names.JOINT_GATE, "queue"]), ("free", [])):
        cluster.pod(name, gates=gates, resourceClaims=[named, template])
    pause = cluster.settle()
    assert pause is not None
    assert pause <= LACKS_FOR
    assert cluster.told == []
    cluster.pass_time(LACKS_FOR)
    cluster.settle()
    (told,) = cluster.told
    assert (told.reason, [objects.name(about) for about in told.about]) == (CLAIM_MISSING, ["held"])
    assert "default/a, own (made from ResourceClaimTemplate default/single" in told.message
    waiting = cluster.reconciler.waiting.figures()
    assert waiting[CLAIM_MISSING].number == 1
    cluster.pass_time(RETOLD - 1)
    cluster.settle()
    assert len(cluster.told) == 1, "once"
    cluster.pass_time(RETOLD)
    cluster.settle()
    assert len(cluster.told) == 2, "the API server forgets it"
    cluster.claim("a")
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.told[-1].message.endswith(
        "lacks ResourceClaim own (made from ResourceClaimTemplate default/single, if that is there)"
    )
    cluster.api.delete(PODS, "held")
    cluster.settle()
    assert CLAIM_MISSING not in cluster.reconciler.waiting.figures()


def test_what_a_claim_waits_for_is_told_again_while_it_waits_and_no_longer() -> None:
    cluster = JointCluster()
    cluster.claim("large", memory="200Gi")
    cluster.pod("p", "large")
    cluster.settle()
    assert len(cluster.told) == 1
    cluster.pass_time(RETOLD)
    cluster.settle()
    assert [told.reason for told in cluster.told] == ["ExceedsDevice"] * 2
    cluster.api.delete(PODS, "p")
    cluster.pass_time(RETOLD)
    cluster.settle()
    assert len(cluster.told) == 2, "no pod wants it"
