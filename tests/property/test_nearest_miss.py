"""What a waiting claim is told to leave away is left away: then it has to fit."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from hypothesis import event, given

from koordra.placement import plan
from tests.long import examples
from tests.property.test_allocator import clusters, full_machines, nvlinked

Dict = dict[str, Any]

LABEL = "koordra.io/gpu-partition-policy"


def pending(objects: list[Dict]) -> list[Dict]:
    return [o for o in objects if o["kind"] == "ResourceClaim" and "status" not in o]


def without_configs(objects: list[Dict], unwanted: Callable[[Dict], bool]) -> None:
    for claim in pending(objects):
        devices = claim["spec"]["devices"]
        kept = [entry for entry in devices.get("config", []) if not unwanted(entry["opaque"]["parameters"])]
        devices["config"] = kept


def is_joint(parameters: Dict) -> bool:
    return bool(parameters["kind"] == "JointAllocation")


def constraint_of(claim: Dict, detail: str, request: str | None) -> Dict:
    """The constraint that the reason begins with."""
    return next(
        entry
        for entry in claim["spec"]["devices"].get("constraints", [])
        if f"{next(k for k in entry if k != 'requests')} " in f"{detail} "
        and any(detail.startswith(f"{kind} {entry[kind]}") for kind in entry if kind != "requests")
        and (", ".join(entry.get("requests", [])) or None) == request
    )


def relaxed(objects: list[Dict], claim: str, reason: Any) -> list[Dict] | None:
    """The objects after what the reason says was done to them; None where it says nothing of the kind."""
    found = copy.deepcopy(objects)
    _, said, end = reason.detail.partition("it would fit ")
    if not said or reason.device is not None or reason.detail.startswith("waits for"):
        return None
    own = next(o for o in pending(found) if o["metadata"]["name"] == claim.partition("/")[2])
    scope = re.match(r"JointAllocation scope (\w+), pairing (\w+)", reason.detail)
    if scope and (end.startswith("with scope") or end == "without the JointAllocation"):
        parameters = next(
            entry["opaque"]["parameters"]
            for o in (own, *pending(found))
            for entry in o["spec"]["devices"].get("config", [])
            if is_joint(entry["opaque"]["parameters"])
            and entry["opaque"]["parameters"]["enforcement"] == "Required"
            and entry["opaque"]["parameters"]["scope"] == scope[1]
        )
        if end.startswith("with scope"):
            parameters["scope"] = end.removeprefix("with scope ")
        else:
            parameters.update(scope="Node", enforcement="Preferred")
        return found
    if end.startswith("without it"):
        own["spec"]["devices"]["constraints"].remove(constraint_of(own, reason.detail, reason.request))
        return found
    if "JointAllocation" in end:
        without_configs(found, is_joint)
    if "constraints" in end:
        for entry in [own] if "of the claim" in end and "claims" not in end else pending(found):
            entry["spec"]["devices"]["constraints"] = []
    if "GpuConfig" in end:
        without_configs(found, lambda parameters: parameters["kind"] == "GpuConfig")
    if LABEL in end:
        for node in (o for o in found if o["kind"] == "Node"):
            node["metadata"]["labels"].pop(LABEL, None)
    assert found != objects, reason.detail
    return found


def check(objects: list[Dict]) -> None:
    told = plan(objects).unsatisfiable
    tried = [
        (reason.detail, changed)
        for claim, reasons in told.items()
        for reason in reasons
        if (changed := relaxed(objects, claim, reason)) is not None
    ]
    for detail, changed in tried:
        event(re.sub(r"\d+", "", detail.partition("it would fit ")[2]))
        assert not plan(changed, policy="FirstFit").unsatisfiable, detail


@examples(250)
@given(clusters(most=4, most_claims=2, most_requests=3, most_count=2))
def test_claims_fit_without_what_they_are_told_to_leave_away(objects: list[Dict]) -> None:
    check(objects)


@examples(30)
@given(full_machines())
def test_on_a_full_machine(objects: list[Dict]) -> None:
    check(objects)


@examples(80)
@given(nvlinked())
def test_over_nvlink(objects: list[Dict]) -> None:
    check(objects)
