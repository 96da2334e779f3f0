"""ResourceClasses against an API in memory: creation, drift, deletion, names taken, bad input, conditions."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.classic.suitable_nodes import SUITABLE_NODES
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES
from koordra.controller.resource_class.reconcile import ClassReconciler, on_suitable_nodes
from koordra.errors import ApiUnreachable, Conflict, Invalid, NotFound

Object = dict[str, Any]


class Api:
    """ResourceClasses, their parameters and DeviceClasses; `writes` lists what was written."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], Object] = {}
        self.writes: list[str] = []
        self.refuses = ""
        self.version = 0

    def put(self, kind: Any, obj: Object) -> Object:
        self.version += 1
        metadata = {"uid": f"u-{self.version}", **obj["metadata"], "resourceVersion": str(self.version)}
        self.stored[(kind.plural, objects.name(obj))] = {**obj, "metadata": metadata}
        return self.stored[(kind.plural, objects.name(obj))]

    def get(self, kind: Any, name: str, *, namespace: str | None = None) -> Object:
        del namespace
        if (kind.plural, name) not in self.stored:
            raise NotFound("not there", code=404)
        return copy.deepcopy(self.stored[(kind.plural, name)])

    def all(self, kind: Any) -> list[Object]:
        return [copy.deepcopy(obj) for (plural, _), obj in self.stored.items() if plural == kind.plural]

    def create(self, kind: Any, body: Object) -> Object:
        self.writes.append(f"create {kind.plural}/{objects.name(body)}")
        if self.refuses:
            raise Invalid(self.refuses, code=422, reason="Invalid")
        if (kind.plural, objects.name(body)) in self.stored:
            raise Conflict("exists", code=409, reason="AlreadyExists")
        return self.put(kind, body)

    def update(self, kind: Any, body: Object, *, subresource: str | None = None) -> Object:
        self.writes.append(
            f"update {kind.plural}/{objects.name(body)}" + (f"/{subresource}" if subresource else "")
        )
        return self.put(kind, body)

    def condition(self, name: str, condition: str = "Ready") -> Object:
        found = (self.stored[("resourceclasses", name)].get("status") or {}).get("conditions") or []
        return next(one for one in found if one["type"] == condition)


@pytest.fixture
def api() -> Api:
    return Api()


def reconcile(api: Api, *, hour: int = 0, may_write: bool = True) -> None:
    reconciler = ClassReconciler(
        api,
        own_namespace="koordra-system",
        now=lambda: f"2026-11-21T{hour:02}:00:00Z",
        may_write=lambda: may_write,
    )
    reconciler.reconcile(
        api.all(RESOURCE_CLASSES),
        {objects.name(obj): obj for obj in api.all(DEVICE_CLASSES)},
        {objects.key(obj): obj for obj in api.all(CLASS_PARAMETERS)},
    )


def a_class(name: str = "fast", **fields: Any) -> Object:
    return {"kind": "ResourceClass", "metadata": {"name": name, "generation": 3}, **fields}


def test_a_class_becomes_a_device_class_and_is_then_left_alone(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class(deviceType="gpu"))
    reconcile(api)
    assert api.writes == ["create deviceclasses/fast", "update resourceclasses/fast/status"]
    ready = api.condition("fast")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("True", "Reconciled", 3)
    api.writes.clear()
    reconcile(api, hour=1)
    assert api.writes == []


def test_a_class_for_some_namespaces_says_so_on_its_device_class(api: Api) -> None:
    obj = a_class()
    obj["metadata"] |= {
        "labels": {names.RESTRICTED_LABEL: "true", "team": "ml"},
        "annotations": {names.CLASS_NAMESPACES: "ml,finance"},
    }
    api.put(RESOURCE_CLASSES, obj)
    reconcile(api)
    made = api.stored[("deviceclasses", "fast")]["metadata"]
    assert made["labels"][names.RESTRICTED_LABEL] == "true"
    assert "team" not in made["labels"]
    assert made["annotations"] == {names.CLASS_NAMESPACES: "ml,finance"}
    made["labels"].pop(names.RESTRICTED_LABEL)
    reconcile(api)
    assert api.stored[("deviceclasses", "fast")]["metadata"]["labels"][names.RESTRICTED_LABEL] == "true"


def test_drift_is_put_back_and_foreign_labels_stay(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    reconcile(api)
    made = api.stored[("deviceclasses", "fast")]
    before = copy.deepcopy(made["spec"])
    made["spec"] = {"selectors": []}
    made["metadata"]["labels"] = {"team": "ml"}
    made["metadata"]["annotations"] = {SUITABLE_NODES: "x", "note": "y"}
    reconcile(api)
    found = api.stored[("deviceclasses", "fast")]
    assert found["spec"] == before
    assert found["metadata"]["labels"]["team"] == "ml"
    assert found["metadata"]["labels"]["koordra.io/class"] == "true"
    assert found["metadata"]["annotations"] == {"note": "y"}


def test_a_deleted_device_class_comes_back_and_a_deleted_class_is_left_to_garbage_collection(
    api: Api,
) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    reconcile(api)
    del api.stored[("deviceclasses", "fast")]
    reconcile(api)
    (owner,) = api.stored[("deviceclasses", "fast")]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("ResourceClass", True)
    del api.stored[("deviceclasses", "fast")]
    api.stored[("resourceclasses", "fast")]["metadata"]["deletionTimestamp"] = "now"
    reconcile(api)
    assert ("deviceclasses", "fast") not in api.stored


def test_somebody_elses_device_class_is_never_touched(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    api.put(DEVICE_CLASSES, {"kind": "DeviceClass", "metadata": {"name": "fast"}, "spec": {"selectors": []}})
    reconcile(api)
    assert api.writes == ["update resourceclasses/fast/status"]
    ready = api.condition("fast")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "delete that DeviceClass, or choose another name" in ready["message"]


def test_a_class_that_went_wrong_keeps_its_device_class_and_says_so(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    reconcile(api)
    api.stored[("resourceclasses", "fast")]["selectors"] = [{"cel": {"expression": "nonsense"}}]
    reconcile(api, hour=2)
    ready = api.condition("fast")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSelector")
    assert "the DeviceClass stays as it was" in ready["message"]
    assert ready["lastTransitionTime"] == "2026-11-21T02:00:00Z"
    assert ("deviceclasses", "fast") in api.stored
    del api.stored[("resourceclasses", "fast")]["selectors"]
    reconcile(api, hour=3)
    assert api.condition("fast")["lastTransitionTime"] == "2026-11-21T03:00:00Z"


def test_words_of_the_api_server_reach_the_condition(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    api.refuses = "spec.selectors[0]: too expensive"
    reconcile(api)
    ready = api.condition("fast")
    assert ready["reason"] == "RefusedByServer"
    assert "too expensive" in ready["message"]


def test_suitable_nodes_have_a_condition_of_their_own(api: Api) -> None:
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]}
    api.put(RESOURCE_CLASSES, a_class("ours", suitableNodes=nodes))
    api.put(RESOURCE_CLASSES, a_class("theirs", suitableNodes=nodes, driverName="a.io"))
    reconcile(api)
    assert api.condition("ours", "NodesHonoured")["status"] == "True"
    assert api.condition("theirs", "NodesHonoured")["reason"] == "ForeignDriver"
    pod = {"spec": {}}
    claim = {"spec": {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "ours"}}]}}}
    classes = {objects.name(obj): obj for obj in api.all(DEVICE_CLASSES)}
    affinity = on_suitable_nodes(pod, [claim], classes)["spec"]["affinity"]["nodeAffinity"]
    assert affinity["requiredDuringSchedulingIgnoredDuringExecution"] == nodes
    classes["ours"]["metadata"]["annotations"][SUITABLE_NODES] = "{"
    nowhere = on_suitable_nodes(pod, [claim], classes)["spec"]["affinity"]["nodeAffinity"]
    assert "matchFields" in nowhere["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]


def test_one_bad_class_hides_no_other(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class("bad", driverName=7))
    api.put(RESOURCE_CLASSES, a_class("good"))
    reconcile(api)
    assert api.condition("bad")["reason"] == "InvalidClass"
    assert api.condition("good")["status"] == "True"


def test_nothing_is_written_after_the_lease(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    reconcile(api, may_write=False)
    assert api.writes == []


def test_a_cache_that_lags_is_waited_for(api: Api) -> None:
    api.put(RESOURCE_CLASSES, a_class())
    reconciler = ClassReconciler(api, own_namespace="n", now=lambda: "", may_write=lambda: True)
    reconciler.reconcile(api.all(RESOURCE_CLASSES), {}, {})
    with pytest.raises(ApiUnreachable):
        reconciler.reconcile(api.all(RESOURCE_CLASSES), {}, {})
