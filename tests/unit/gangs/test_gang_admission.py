"""What the webhook makes of pods in gangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordra.api import names
from koordra.api.objects import Object
from koordra.controller.webhook.handlers import mutate_pods
from koordra.controller.webhook.review import AdmissionRequest
from tests.fakes.joint_cluster import device_class

OWN = {"koordra.io/gang": "train", "koordra.io/gang-min": "2"}


class Known:
    """One template of koordra's and one of somebody else's."""

    def claim(self, namespace: str, name: str) -> Object | None:
        del namespace, name
        return None

    def for_review(self) -> Any:
        return self

    def template(self, namespace: str, name: str) -> Object | None:
        del namespace
        classes = {"ours": names.CLASS_GPU, "theirs": "gpu.example.com"}
        if name not in classes:
            return None
        request = {"name": "gpu", "exactly": {"deviceClassName": classes[name]}}
        return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}

    def classes(self) -> Mapping[str, Object]:
        theirs = {"metadata": {"name": "gpu.example.com"}, "spec": {}}
        return {names.CLASS_GPU: device_class(names.CLASS_GPU, "gpu"), "gpu.example.com": theirs}


def asked(template: str = "", *, gates: list[str] | None = None, **metadata: Any) -> AdmissionRequest:
    spec: Object = {"containers": []}
    if template:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    pod = {"kind": "Pod", "metadata": {"name": "w0", "namespace": "team", **metadata}, "spec": spec}
    return AdmissionRequest("1", "CREATE", "Pod", "team", pod)


def gates(review: AdmissionRequest, *, native: bool = False) -> list[str]:
    answer = mutate_pods(review, Known(), native)  # type: ignore[arg-type]
    assert not answer.problems
    found = (answer.object or review.object)["spec"].get("schedulingGates") or ()
    return [gate["name"] for gate in found]


GATE = [names.JOINT_GATE]


def test_a_member_is_held_with_claims_and_without() -> None:
    assert gates(asked("ours", annotations=OWN)) == GATE
    assert gates(asked(annotations=OWN)) == GATE
    assert gates(asked("ours", annotations=OWN, gates=[names.JOINT_GATE])) == GATE


def test_other_gates_stay() -> None:
    assert gates(asked("ours", annotations=OWN, gates=["queue"])) == ["queue", names.JOINT_GATE]


def test_of_foreign_groups_only_those_with_claims_of_koordras() -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "train"}
    assert gates(asked("ours", labels=labels)) == GATE
    assert gates(asked("not-there-yet", labels=labels)) == GATE
    assert gates(asked("theirs", labels=labels)) == []
    assert gates(asked(labels=labels)) == []


def test_in_native_mode_nobody_is_held() -> None:
    assert gates(asked("ours", annotations=OWN), native=True) == []


@pytest.mark.parametrize(
    ("annotations", "word"),
    [
        ({"koordra.io/gang": "train"}, "koordra.io/gang-min is missing"),
        ({**OWN, "koordra.io/gang-min": "many"}, "'many'"),
        ({**OWN, "koordra.io/gang-policy": "Hope"}, "Restart or Keep"),
    ],
)
def test_what_cannot_be_meant_is_refused(annotations: dict[str, str], word: str) -> None:
    answer = mutate_pods(asked("ours", annotations=annotations), Known(), False)  # type: ignore[arg-type]
    assert answer.problems
    assert word in str(answer.problems[0])
