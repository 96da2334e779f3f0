"""Pods that name ElasticGPUClaims: bound without looking anything up, once, and refused with words where it
cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from koordra.api.elastic.elastic_pods import (
    entry_name,
    names_claims,
    with_annotations,
    with_claims,
    without_annotations,
)
from koordra.api.objects import Object
from koordra_devcluster.demo import manifests

EXAMPLE = manifests.deploy_folder() / "examples" / "elastic-gpu" / "elastic-gpu.yaml"


def pod(*containers: str, init: str = "", **annotations: str) -> Object:
    """Annotations by suffix."""
    spec: Object = {"containers": [{"name": name, "image": "x"} for name in containers]}
    if init:
        spec["initContainers"] = [{"name": init, "image": "x"}]
    notes = {f"egpuc.elasticgpu.io/{suffix}": claim for suffix, claim in annotations.items()}
    return {"kind": "Pod", "metadata": {"name": "p", "annotations": notes}, "spec": spec}


def claims_of(found: Object) -> dict[str, list[str]]:
    groups = (*(found["spec"].get("initContainers") or ()), *found["spec"]["containers"])
    return {
        entry["name"]: [use["name"] for use in (entry.get("resources") or {}).get("claims") or ()]
        for entry in groups
    }


def test_a_container_gets_the_claim_that_it_names() -> None:
    found = with_claims(pod("a", "b", init="i", a="one", i="one", b="two"))
    assert not found.problems
    assert not found.warnings
    assert found.pod["spec"]["resourceClaims"] == [
        {"name": "egpuc-one", "resourceClaimName": "one"},
        {"name": "egpuc-two", "resourceClaimName": "two"},
    ]
    assert claims_of(found.pod) == {"i": ["egpuc-one"], "a": ["egpuc-one"], "b": ["egpuc-two"]}


def test_a_second_pass_changes_nothing() -> None:
    once = with_claims(pod("a", a="one")).pod
    assert with_claims(once).pod is once


def test_an_entry_that_a_person_wrote_is_used() -> None:
    given = pod("a", a="one")
    given["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "one"}]
    assert claims_of(with_claims(given).pod) == {"a": ["mine"]}


def test_a_lone_suffix_means_the_only_container() -> None:
    (first, second) = [obj for obj in yaml.safe_load_all(EXAMPLE.read_text()) if obj["kind"] == "Pod"]
    for obj, claim in ((first, "gpushare-egpuc-1"), (second, "gpushare-egpuc-2")):
        found = with_claims(obj)
        assert claims_of(found.pod) == {"test-cuda": [f"egpuc-{claim}"]}
        (warning,) = found.warnings
        assert "there is no container test1; taken for the only one, test-cuda" in warning


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod("a", "b", c="one"), "the pod's containers are a, b"),
        (pod("a", a="one", c="two"), "there is no container c"),
        (pod("a", a="Not A Name"), "no name of an ElasticGPUClaim"),
        (pod("a", a=""), "no name of an ElasticGPUClaim"),
        (pod("a", a="x" * 254), "no name of an ElasticGPUClaim"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Object, words: str) -> None:
    found = with_claims(given)
    assert found.pod is given
    assert words in str(found.problems[0])
    assert "Pod p: metadata.annotations[egpuc.elasticgpu.io/" in str(found.problems[0])


@pytest.mark.parametrize(
    "name", ["elasticgpu.io/gpu-core", "elasticgpu.com/gpu-memory", "tke.cloud.tencent.com/qgpu-core"]
)
def test_a_claim_and_a_request_in_one_container_are_refused(name: str) -> None:
    given = pod("a", a="one")
    given["spec"]["containers"][0]["resources"] = {"limits": {name: 10}}
    assert "names a claim and asks for" in str(with_claims(given).problems[0])


@pytest.mark.parametrize("claim", ["one", "a.b", "x" * 60, "x" * 200, "a-b", "a" * 57 + ".b"])
def test_entries_are_dns_labels_and_differ(claim: str) -> None:
    name = entry_name(claim)
    assert len(name) <= 63
    assert "." not in name
    assert name != entry_name(f"{claim}x")
    assert name != entry_name(claim.replace(".", "-") if "." in claim else f"{claim}.x")


def test_the_annotations_are_hidden_from_the_dialects_and_come_back() -> None:
    given: dict[str, Any] = pod("a", a="one")
    given["metadata"]["annotations"]["team"] = "ml"
    without = without_annotations(given)
    assert names_claims(given)
    assert not names_claims(without)
    assert without["metadata"]["annotations"] == {"team": "ml"}
    assert with_annotations(without, given) is given
    assert with_annotations({**without, "spec": {}}, given) == {**given, "spec": {}}
    other = pod("a")
    assert without_annotations(other) is other
    assert with_claims(other).pod is other
