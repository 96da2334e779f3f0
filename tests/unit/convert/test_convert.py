"""`koordra convert`: whole files against golden output, and the rules one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koordra.api import names, objects
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.api.classic import convert as classic
from koordra.api.classic.convert import Notes, convert
from koordra.cli.convert import convert_command as command
from koordra.errors import InvalidManifest

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.yaml"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.mark.parametrize("name", NAMES)
def test_files_are_converted_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    result = run("-f", str(CASES / f"{name}.yaml"))
    golden(f"convert/{name}.yaml", result.stdout)
    golden(f"convert/{name}.notes.txt", result.stderr)
    assert (result.exception is None) == (name != "bad")


@pytest.mark.parametrize("name", NAMES)
def test_json_is_one_list_alone(name: str) -> None:
    text = run("-f", str(CASES / f"{name}.yaml"), "-o", "json").stdout
    listed = json.loads(text)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    documents = list(yaml.safe_load_all(run("-f", str(CASES / f"{name}.yaml")).stdout))
    assert listed["items"] == documents


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_out_is_v1_and_stays_as_it_is(name: str) -> None:
    made = json.loads(run("-f", str(CASES / f"{name}.yaml"), "-o", "json").stdout)["items"]
    for obj in made:
        if obj["apiVersion"].startswith("resource.k8s.io/"):
            assert obj["apiVersion"] == "resource.k8s.io/v1"
            assert "status" not in obj
        if obj["kind"] == "ResourceClaim":
            ResourceClaim.from_dict(obj)
        if obj["kind"] == "DeviceClass":
            DeviceClass.from_dict(obj)
    again = convert(made)
    assert list(again.objects) == made
    assert not again.notes


def test_a_refusal_ends_with_the_exit_code_of_bad_input() -> None:
    error = run("-f", str(CASES / "bad.yaml"), "-o", "json").exception
    assert isinstance(error, InvalidManifest)
    assert error.exit_code == 2


def test_every_refusal_names_object_and_says_what_to_do() -> None:
    manifests = list(yaml.safe_load_all((CASES / "bad.yaml").read_text()))
    refused = convert(manifests).refused
    assert len(refused) >= 18
    assert all(note.object and note.problem for note in refused)
    without_remedy = [str(note) for note in refused if not note.remedy]
    assert without_remedy == ["ResourceClaim text: spec: is not an object"]


def test_stdin_and_several_files_are_one_input(tmp_path: Path) -> None:
    documents = (CASES / "koordra.yaml").read_text().split("---\n")
    rest = tmp_path / "rest.yaml"
    rest.write_text("---\n".join(documents[1:]))
    whole = run("-f", str(CASES / "koordra.yaml"))
    parts = CliRunner().invoke(command, ["-f", "-", "-f", str(rest)], input=documents[0])
    assert parts.stdout == whole.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not YAML"), ("- 1", "is not a Kubernetes object"), ("kind: A", "has no metadata")],
)
def test_a_file_that_is_no_manifest_is_told(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    result = run("-f", str(path))
    assert isinstance(result.exception, InvalidManifest)
    assert words in str(result.exception)
    assert result.stdout == ""


SELECTORS = [
    ('attributes.string["model"] == "a"', 'device.attributes["d.io"].model == "a"'),
    ("attributes.string['model'] == 'a'", "device.attributes[\"d.io\"].model == 'a'"),
    ('attributes.quantity["memory"]', 'device.capacity["d.io"].memory'),
    ('attributes.int["numa.hw.io"] == 1', 'device.attributes["hw.io"].numa == 1'),
    ('"attributes.string[\\"model\\"]" == "x"', '"attributes.string[\\"model\\"]" == "x"'),
    ("attributes . bool [ 'ecc' ]", 'device.attributes["d.io"].ecc'),
    ("my.attributes == 1", "my.attributes == 1"),
]


@pytest.mark.parametrize(("before", "after"), SELECTORS)
def test_selectors_read_the_same_device(before: str, after: str) -> None:
    from koordra.api.classic.class_parameters import v1_selector

    assert v1_selector(before, driver="d.io", notes=Notes("x"), field="f") == after


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('attributes.colour["a"]', "no type"),
        ('attributes.string["a-b"]', "no name in v1"),
        ("attributes.all(a, true)", "as a whole"),
        (f'attributes.string["{"a" * 33}"]', "no name in v1"),
    ],
)
def test_selectors_without_a_v1_form_are_refused(expression: str, words: str) -> None:
    from koordra.api.classic.class_parameters import v1_selector

    with pytest.raises(classic.Refused, match=words):
        v1_selector(expression, driver="d.io", notes=Notes("x"), field="f")


def parameters_of(size: int) -> list[dict[str, Any]]:
    group = "gpu.example.com"
    return [
        {
            "apiVersion": "resource.k8s.io/v1alpha2",
            "kind": "ResourceClass",
            "metadata": {"name": "gpu"},
            "driverName": group,
            "parametersRef": {"apiGroup": group, "kind": "P", "name": "big"},
        },
        {"apiVersion": f"{group}/v1", "kind": "P", "metadata": {"name": "big"}, "spec": {"text": "x" * size}},
    ]


def test_parameters_longer_than_v1_allows_are_refused() -> None:
    assert not convert(parameters_of(9000)).refused
    (note,) = convert(parameters_of(11000)).refused
    assert "10240" in note.problem


@pytest.mark.parametrize(
    "spec", [{"count": None}, {"alignment": ""}, {"alignment": None}, {"requiredScope": ""}]
)
def test_a_vendors_field_that_is_empty_is_refused(spec: dict[str, Any]) -> None:
    """A value that a chart forgot: a claim without it would be another one."""
    driver, version = "gpu.example.com", "resource.k8s.io/v1alpha2"
    reference = {"apiGroup": driver, "kind": "P", "name": "share"}
    claim = {
        "apiVersion": version,
        "kind": "ResourceClaim",
        "metadata": {"name": "half"},
        "spec": {"resourceClassName": "gpu", "parametersRef": reference},
    }
    share = {"apiVersion": f"{driver}/v1", "kind": "P", "metadata": {"name": "share"}, "spec": spec}
    found = {
        "apiVersion": version,
        "kind": "ResourceClass",
        "metadata": {"name": "gpu"},
        "driverName": driver,
    }
    (note,) = convert([found, share, claim]).refused
    assert (note.field, note.problem) == (f"spec.{next(iter(spec))}", "is empty")


def test_a_parameters_object_that_refers_to_itself_ends() -> None:
    selfish = {
        "apiVersion": "resource.k8s.io/v1alpha2",
        "kind": "ResourceClaimParameters",
        "metadata": {"name": "me"},
        "generatedFrom": {"apiGroup": "resource.k8s.io", "kind": "ResourceClaimParameters", "name": "me"},
        "driverRequests": [{"requests": [{}]}],
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1alpha2",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"resourceClassName": "gpu", "parametersRef": dict(selfish["generatedFrom"])},
    }
    made = convert([*parameters_of(10), selfish, claim])
    assert not made.refused
    assert [obj["kind"] for obj in made.objects] == ["DeviceClass", "ResourceClaim"]


class Shouting:
    """A dialect for the test: pods with the annotation `shout` get a template."""

    name = "shouting"

    def handles(self, obj: dict[str, Any]) -> bool:
        return obj.get("kind") == "Pod" and "shout" in objects.annotations_of(obj)

    def translate(self, obj: dict[str, Any], notes: Notes) -> Sequence[dict[str, Any]]:
        if objects.annotations_of(obj)["shout"] == "no":
            raise notes.refuse("metadata.annotations[shout]", "cannot be meant", "leave it out")
        notes.warn("metadata.annotations[shout]", "is gone")
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t"},
        }
        return [template, {**obj, "metadata": {"name": objects.name(obj)}}]


def shouting_pod(name: str, shout: str = "yes") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"shout": shout}},
        "spec": {"containers": [{"name": "main"}]},
    }


def test_dialects_plug_in_and_shared_templates_appear_once() -> None:
    made = convert([shouting_pod("a"), shouting_pod("b"), shouting_pod("c", "no")], translators=[Shouting()])
    assert [(obj["kind"], objects.name(obj)) for obj in made.objects] == [
        ("ResourceClaimTemplate", "t"),
        ("Pod", "a"),
        ("Pod", "b"),
    ]
    assert [str(note) for note in made.refused] == [
        "Pod c: metadata.annotations[shout]: cannot be meant; leave it out"
    ]
    assert len(made.notes) == 3


def test_classes_of_koordra_keep_the_scheduler_away() -> None:
    manifests = list(yaml.safe_load_all((CASES / "koordra.yaml").read_text()))
    made = convert(manifests).objects[0]
    assert f'allocator == "{names.ALLOCATOR_SCHEDULER}"' in made["spec"]["selectors"][0]["cel"]["expression"]


def test_text_is_text_to_kubectl_too(tmp_path: Path) -> None:
    """Its YAML reads y, n, 1e3 and 0o7 as booleans and numbers, PyYAML does not and would leave them bare."""
    texts = ["y", "N", "1e3", "0o7", "0X1F", "12E05", "plain", "1.2.3"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {f"l{number}": text for number, text in enumerate(texts)}},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    written = run("-f", str(tmp_path / "pod.json")).stdout
    assert yaml.safe_load(written) == pod
    bare = [line.split(": ")[1] for line in written.splitlines() if line.startswith("    l")]
    assert bare == ["'y'", "'N'", "'1e3'", "'0o7'", "'0X1F'", "'12E05'", "plain", "1.2.3"]


def test_a_config_map_that_is_parameters_stays_for_its_other_readers() -> None:
    """Objects of vendors' kinds that went into a claim are left out; this one pods may mount."""
    found = convert(
        [
            {
                "apiVersion": "resource.k8s.io/v1alpha2",
                "kind": "ResourceClass",
                "metadata": {"name": "c"},
                "driverName": "dra.example.com",
            },
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}},
            {
                "apiVersion": "resource.k8s.io/v1alpha2",
                "kind": "ResourceClaim",
                "metadata": {"name": "r"},
                "spec": {"resourceClassName": "c", "parametersRef": {"kind": "ConfigMap", "name": "m"}},
            },
        ]
    )
    assert [obj["kind"] for obj in found.objects] == ["DeviceClass", "ConfigMap", "ResourceClaim"]


def test_an_entry_that_names_two_claims_in_two_forms_is_refused() -> None:
    entry = {"name": "gpu", "source": {"resourceClaimName": "old"}, "resourceClaimName": "new"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "x"}], "resourceClaims": [entry]},
    }
    (note,) = convert([pod]).refused
    assert note.field == "spec.resourceClaims[0].resourceClaimName"
    entry["resourceClaimName"] = "old"
    assert convert([pod]).refused == ()


AS_KUBECTL_READS = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {commit: "123e4", short: "1e3", octal: "0o17", "no": "n", off: "x", time: "12:30", version: "1.10"}
spec:
  containers:
  - name: a
    image: x
    args: [12:30, 1:20:30.5, =, "0x1F", "1_000", .5, yes]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


def test_texts_that_look_like_numbers_stay_texts_for_kubectl(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(AS_KUBECTL_READS)
    lines = [line.strip() for line in run("-f", str(path)).stdout.splitlines()]
    assert "commit: '123e4'" in lines
    assert {
        "short: '1e3'",
        "octal: '0o17'",
        "'no': 'n'",
        "'false': x",
        "time: '12:30'",
        "version: '1.10'",
    } <= set(lines)
    (pod, _) = json.loads(run("-f", str(path), "-o", "json").stdout)["items"]
    assert pod["spec"]["containers"][0]["args"] == ["12:30", "1:20:30.5", "=", "0x1F", "1_000", 0.5, True]
