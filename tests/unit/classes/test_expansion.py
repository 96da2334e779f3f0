"""ResourceClasses among manifests: which DeviceClass counts, and what is said of a class that has none."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.resource_class import CLASS_PARAMETERS, CONFIG_MAPS, RESOURCE_CLASSES
from koordra.controller.resource_class.expansion import with_device_classes
from koordra_devcluster.demo import examples

Object = dict[str, Any]
H100 = 'device.attributes["koordra.io"].model == "H100"'


def resource_class(name: str = "fast", *, uid: str = "", **fields: Any) -> Object:
    metadata = {"name": name} | ({"uid": uid} if uid else {})
    return {**RESOURCE_CLASSES.type_meta, "metadata": metadata, "deviceType": "gpu", **fields}


def device_class(name: str = "fast", owner: Object | None = None, kind: str = "ResourceClass") -> Object:
    owners = [] if owner is None else [{"kind": kind, "controller": True, "name": "fast", "uid": "u"} | owner]
    return {
        **DEVICE_CLASSES.type_meta,
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"selectors": [{"cel": {"expression": "old"}}]},
    }


def expressions(found: list[Object], name: str = "fast") -> list[str]:
    (one,) = [each for each in found if each["kind"] == "DeviceClass" and objects.name(each) == name]
    return [entry["cel"]["expression"] for entry in one["spec"]["selectors"]]


def test_a_class_is_the_device_class_that_it_means_and_all_else_stays() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    found, refused = with_device_classes([pod, resource_class(selectors=[{"cel": {"expression": H100}}])])
    assert refused == []
    assert [one["kind"] for one in found] == ["Pod", "DeviceClass"]
    assert expressions(found)[1:] == [H100]
    assert '.type == "gpu"' in expressions(found)[0]


def test_parameters_are_found_among_the_manifests() -> None:
    base = {
        **CLASS_PARAMETERS.type_meta,
        "metadata": {"name": "base", "namespace": "team"},
        "filters": [{"expression": H100}],
    }
    top = {**base, "metadata": {"name": "top", "namespace": "team"}, "base": {"name": "base"}, "filters": []}
    text = "apiVersion: koordra.io/v1alpha1\nkind: GpuConfig\ndriverCapabilities: [compute]\n"
    config = {
        **CONFIG_MAPS.type_meta,
        "metadata": {"name": "config", "namespace": "koordra-system"},
        "data": {"parameters": text},
    }
    by_chain = {
        "apiGroup": "koordra.io",
        "kind": "ResourceClassParameters",
        "name": "top",
        "namespace": "team",
    }
    by_map = {"kind": "ConfigMap", "name": "config", "namespace": "koordra-system"}
    given = [
        base,
        top,
        config,
        resource_class("one", parametersRef=by_chain),
        resource_class("two", parametersRef=by_map),
    ]
    found, refused = with_device_classes(given)
    assert refused == []
    assert expressions(found, "one")[1:] == [H100]
    (two,) = [one for one in found if objects.name(one) == "two"]
    assert two["spec"]["config"][0]["opaque"]["parameters"]["driverCapabilities"] == ["compute"]


@pytest.mark.parametrize(
    ("uid", "owner", "counts"),
    [
        ("u", {"uid": "u"}, "the old"),
        ("", {"uid": "u"}, "the new"),
        ("u", {"uid": "another"}, "refused"),
        ("", {"name": "another"}, "refused"),
        ("u", None, "refused"),
        ("", None, "refused"),
        ("", {"controller": False}, "refused"),
    ],
)
def test_a_device_class_of_that_name_is_there(uid: str, owner: Object | None, counts: str) -> None:
    found, refused = with_device_classes([device_class(owner=owner), resource_class(uid=uid)])
    assert (expressions(found) == ["old"]) == (counts != "the new")
    assert [error.reason for error in refused] == (["NameTaken"] if counts == "refused" else [])


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"selectors": [{"cel": {"expression": "device.atributes"}}]}, "InvalidSelector", "is no selector"),
        (
            {"parametersRef": {"apiGroup": "koordra.io", "kind": "ResourceClassParameters", "name": "none"}},
            "ParametersNotFound",
            "there is no ResourceClassParameters koordra-system/none",
        ),
        ({"deviceType": "tpu"}, "InvalidClass", "is no type"),
    ],
)
def test_one_class_that_is_wrong_does_not_take_the_others_with_it(
    fields: Object, reason: str, words: str
) -> None:
    found, (refused,) = with_device_classes([resource_class("wrong", **fields), resource_class("right")])
    assert refused.reason == reason
    assert words in str(refused)
    assert "ResourceClass wrong" in str(refused)
    assert [objects.name(one) for one in found] == ["right"]


@pytest.mark.parametrize("name", [one for one in examples.names() if one.startswith("resource-class")])
def test_every_example_is_expanded(name: str) -> None:
    given = examples.load(name).documents
    found, refused = with_device_classes(given)
    assert refused == []
    classes = {objects.name(one) for one in found if one["kind"] == "DeviceClass"}
    assert classes == {objects.name(one) for one in given if one["kind"] == "ResourceClass"}
    assert classes


def test_a_classic_class_is_none_of_koordras() -> None:
    classic = {
        "apiVersion": "resource.k8s.io/v1alpha2",
        "kind": "ResourceClass",
        "metadata": {"name": "fast"},
        "driverName": "gpu.example.com",
    }
    assert with_device_classes([classic]) == ([classic], [])
