"""`koordra explain` of a claim, a pod, a gang and a node, as a person and a program read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.api.opaque.isolation import attribute
from koordra.cli.cluster.claim_text import last_word
from koordra.cli.cluster.device_text import isolation_lines
from koordra.cli.cluster.explain import explain
from koordra.errors import NotFound
from tests.unit.explain.scene import Dict, cluster, with_condition

ASKED = {
    "claim-with-a-nic": ["claim/pair"],
    "claim-with-a-limit": ["claim/share", "-o", "wide"],
    "claim-that-waits": ["claim/large"],
    "claim-without-a-pod": ["claim/lonely"],
    "gang": ["gang/train"],
    "pod": ["pod/share"],
    "pod-of-another-stack": ["pod/vgpu"],
    "pod-that-nobody-rewrote": ["pod/old"],
    "node": ["node/node-1"],
    "node-with-devices": ["node/node-3", "-o", "wide"],
}


@pytest.fixture(scope="module")
def objects() -> list[Dict]:
    return cluster()


def told(folder: Path, manifests: list[Dict], *words: str) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    done = CliRunner().invoke(explain, ["-f", str(path), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", ASKED)
def test_in_words(name: str, objects: list[Dict], tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    text = told(tmp_path, objects, *ASKED[name])
    golden(f"explain/{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 80


def test_documents(objects: list[Dict], tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    words = ("claim/share", "pod/vgpu", "gang/train", "node/node-3")
    text = told(tmp_path, objects, *words, "-o", "yaml")
    golden("explain/documents.yaml", text)
    assert yaml.safe_load(text) == json.loads(told(tmp_path, objects, *words, "-o", "json"))


def test_who_is_not_there_is_told_with_who_may_have_been_meant(objects: list[Dict], tmp_path: Path) -> None:
    for word, text in (
        ("claim/shar", "claim default/shar is not there; did you mean share?"),
        ("pod/sharee", "pod default/sharee is not there; did you mean share?"),
        ("gang/trains", "gang default/trains is not there; did you mean train?"),
        ("node/node-9", "node node-9 is not there; did you mean node-3?"),
        ("gang/qqqqqq", "gang default/qqqqqq is not there"),
        ("other/share", "claim other/share is not there; one of that name is in namespace default (-n)"),
        ("claim/", "claim default/ is not there"),
    ):
        with pytest.raises(NotFound) as found:
            told(tmp_path, objects, word)
        assert str(found.value) == text


def test_a_first_word_that_is_no_kind_is_a_namespace(objects: list[Dict], tmp_path: Path) -> None:
    assert told(tmp_path, objects, "default/large") == told(tmp_path, objects, "claim/large")
    assert told(tmp_path, objects, "share") == told(tmp_path, objects, "claim/share")


def test_a_limit_that_does_not_hold_is_told(objects: list[Dict], tmp_path: Path) -> None:
    broken = json.loads(json.dumps(objects))
    with_condition(broken, "share", "Limited", "False", "OverLimit", "process 7 has 30Gi")
    assert "condition Limited: False (OverLimit): process 7 has 30Gi" in told(tmp_path, broken, "claim/share")


def test_resources_that_stayed_in_a_converted_pod_are_told(objects: list[Dict], tmp_path: Path) -> None:
    both = json.loads(json.dumps(objects))
    (pod,) = (one for one in both if one["kind"] == "Pod" and one["metadata"]["name"] == "large")
    pod["metadata"]["uid"] = "stored"
    pod["spec"]["containers"][0].setdefault("resources", {})["limits"] = {"nvidia.com/gpu": "1"}
    text = " ".join(told(tmp_path, both, "pod/large").split())
    assert "NVIDIA's device plugin" in text
    assert "besides its claims: it runs only where the other stack gives these, too" in text
    assert "nobody turned" not in text


def test_what_the_controller_said_is_not_told_twice() -> None:
    waits = {"reasons": [{"reason": "ExceedsDevice", "detail": "memory: requested 120Gi"}]}
    same = {**waits, "controller": "ExceedsDevice: claim c: request gpu, 2 nodes: memory: requested 120Gi"}
    assert list(last_word(same, 2)) == []
    other = {**waits, "controller": "QuotaExceeded: claim c: 8 of 8"}
    assert list(last_word(other, 2)) == ["  the controller said last: QuotaExceeded: claim c: 8 of 8"]
    assert list(last_word({**waits, "controller": None}, 2)) == []


def test_shares_without_a_limit_are_accounted_for_only(objects: list[Dict], tmp_path: Path) -> None:
    def with_policy(**policy: Any) -> dict[str, Any]:
        changed = json.loads(json.dumps(objects))
        for device in (
            d for one in changed if one["kind"] == "ResourceSlice" for d in one["spec"]["devices"]
        ):
            for name in ("none", "limiter", "mps", "timeslicing"):
                device["attributes"].pop(attribute(name), None)
                if name in policy:
                    device["attributes"][attribute(name)] = {"bool": policy[name]}
        (entry,) = json.loads(told(tmp_path, changed, "claim/share", "-o", "json"))["claims"]
        (device,) = entry["isolation"]
        return {key: device[key] for key in ("isolation", "enforced", "accounted")}

    assert with_policy(none=True) == {
        "isolation": "none",
        "enforced": [],
        "accounted": ["memory 20Gi", "cores 30"],
    }
    assert with_policy() == {
        "isolation": None,
        "enforced": [],
        "accounted": ["memory 20Gi", "cores 30", "the node does not say how it keeps shares"],
    }
    assert with_policy(none=False, limiter=True)["enforced"] == [
        "memory 20Gi, by the limiter inside the container"
    ]
    assert with_policy(none=False, timeslicing=True) == {
        "isolation": "timeslicing",
        "enforced": [],
        "accounted": ["memory 20Gi", "cores 30"],
    }
    assert with_policy(none=False, mps=True)["enforced"] == [
        "memory 20Gi, by MPS, in each process",
        "cores 30, by MPS, in each process",
    ]


def test_what_auto_came_to_is_told_with_the_order(objects: list[Dict], tmp_path: Path) -> None:
    changed = json.loads(json.dumps(objects))
    claim = next(
        one for one in changed if one["metadata"]["name"] == "share" and one["kind"] == "ResourceClaim"
    )
    devices = claim["status"]["allocation"]["devices"]
    request = devices["results"][0]["request"]
    for requests, word in (([], "Auto"), ([request], "limiter")):
        parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": word}
        opaque = {"driver": "koordra.io", "parameters": parameters}
        entry = {"source": "FromClaim", "opaque": opaque, **({"requests": requests} if requests else {})}
        devices.setdefault("config", []).append(entry)
    text = " ".join(told(tmp_path, changed, "claim/share").split())
    order = "mps, limiter, hami-core, timeslicing, none"
    assert f"(isolation limiter: Auto, the first of {order} that the node has)" in text
    assert isolation_lines(devices) == [f"{request}: isolation limiter (Auto: {order})"]
    assert isolation_lines({**devices, "config": []}) == []
