"""Every name of the table in a manifest of its peer: what the converters do is what the table says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.api.classic.convert import Conversion
from koordra.api.classic.convert import convert as convert_claims
from koordra.api.classic.driver_words import TO_KOORDRA
from koordra.api.classic.notes import Notes
from koordra.api.classic.nvidia_parameters import KOORDRA
from koordra.cli.convert import convert_command
from koordra.compat.dialects import DIALECTS
from koordra.compat.keys import KEYS, Key, Place, Treatment
from koordra.compat.settings import Settings
from koordra.controller.legacy.translation import Translations
from koordra.errors import InvalidManifest
from tests.unit.compat.key_examples import (
    ASKED,
    OBJECTS,
    config_of,
    example,
    name_of,
    object_of,
    object_with,
    without,
)
from tests.unit.compat.pods import Dict, asking, converted

OF_PODS = (Place.RESOURCE, Place.ANNOTATION, Place.LABEL, Place.ENVIRONMENT, Place.SCHEDULER)


def keys(*places: Place) -> list[Key]:
    return [key for key in KEYS if key.place in places]


def called(key: Key) -> str:
    return f"{key.peer}-{key.name}"


def settings_for(key: Key) -> Settings:
    dialect = key.peer if key.peer in ("hami", "koordinator") else "plain"
    return Settings(default_dialect=dialect, options={"plain": {"replicas": 4}})


def convert(manifest: Dict, key: Key) -> Conversion:
    return converted(manifest, settings=settings_for(key))


@pytest.mark.parametrize("key", keys(*OF_PODS), ids=called)
def test_a_name_is_treated_as_the_table_says(key: Key) -> None:
    found, before = convert(example(key), key), convert(without(key), key)
    name = name_of(key) if key.place is not Place.ENVIRONMENT else key.name.rstrip("*")
    named = [note for note in found.notes if name in str(note) and note not in before.notes]
    match key.treatment:
        case Treatment.REFUSED:
            (note,) = found.refused
            assert (note.problem, note.remedy) == (key.problem, key.remedy)
        case Treatment.WARNED:
            assert not found.refused
            assert named
            assert all(note.remedy or "take" in note.problem for note in named)
        case Treatment.TRANSLATED:
            assert not found.refused, found.refused
            assert not [note for note in named if name_of(key) in note.field]
            if not key.becomes.startswith("stays") and key.place is not Place.ENVIRONMENT:
                assert claimed(found) != claimed(before)


def claimed(conversion: Conversion) -> Any:
    """What the pods of a conversion ask for."""
    return [obj["spec"] for obj in conversion.objects if obj["kind"] == "ResourceClaimTemplate"]


@pytest.mark.parametrize("key", keys(Place.KIND), ids=called)
def test_a_kind_is_treated_as_the_table_says(key: Key) -> None:
    found = converted(object_of(key.name, **OBJECTS.get(key.name, {})))
    if key.name in OBJECTS:  # what is said of it depends on what it asks for
        assert [obj["apiVersion"] for obj in found.objects] == ["koordra.io/v1alpha1"]
        return
    assert bool(found.refused) == (key.treatment is Treatment.REFUSED)
    assert [(note.problem, note.remedy) for note in found.notes] == (
        [] if key.treatment is Treatment.TRANSLATED else [(key.problem, key.remedy)]
    )
    assert bool(found.objects) != bool(found.refused)


@pytest.mark.parametrize("key", keys(Place.FIELD), ids=called)
def test_a_field_is_treated_as_the_table_says(key: Key) -> None:
    kind, _, path = key.name.partition(": ")
    found = converted(object_with(path, kind))
    assert [(note.problem, note.remedy) for note in found.notes] == [(key.problem, key.remedy)]
    assert found.notes[0].field.startswith(path)
    assert found.objects == (object_with(path, kind),)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([{"coveredResources": ["cpu", "memory", "pods"]}], []),
        ([{"coveredResources": ["cpu"]}, {"coveredResources": ["nvidia.com/gpu"]}], ["[1]"]),
        ([{}, "odd", {"coveredResources": "nvidia.com/gpu"}], []),
        ("odd", []),
    ],
)
def test_queues_that_count_no_devices_are_left_alone(groups: Any, told: list[str]) -> None:
    queue = object_of("ClusterQueue.kueue.x-k8s.io", resourceGroups=groups)
    found = converted(queue)
    fields = [f"spec.resourceGroups{at}.coveredResources[nvidia.com/gpu]" for at in told]
    assert [note.field for note in found.notes] == fields
    assert found.objects == (queue,)


@pytest.mark.parametrize(
    "key", [key for key in keys(Place.SETTING) if not key.name.startswith(("-", "unit"))], ids=called
)
def test_a_setting_is_treated_as_the_table_says(key: Key) -> None:
    entry, text = config_of(key)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {entry: text}}
    result = CliRunner().invoke(convert_command, ["-f", "-"], input=yaml.safe_dump(config))
    assert result.exit_code == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if name_of(key).rpartition(".")[2] in line]
    assert bool(told) == (key.treatment is Treatment.WARNED)
    assert all(line.endswith(f"{key.problem}; {key.remedy}") for line in told)


SELECTED = {Place.ATTRIBUTE: "attributes", Place.CAPACITY: "capacity"}
DRIVERS = {"nvidia-dra": "gpu.nvidia.com", "dranet": "dra.net"}
STRATEGY = "sharing.strategy"
VALUES: dict[str, Any] = {
    "interface.mtu": 1500,
    "sharing.timeSlicingConfig.interval": "Short",
    STRATEGY: "MPS",
    f"MigDeviceConfig: {STRATEGY}": "TimeSlicing",
}
"""Where another value would be wrong by itself."""


def claim_with(key: Key) -> Dict:
    """A claim of the DRA driver in which the row's name stands, and nothing else of its driver's."""
    driver, request, devices = DRIVERS[key.peer], {"deviceClassName": "own"}, {}
    match key.place:
        case Place.CLASS:
            request = {"deviceClassName": key.name}
        case Place.ATTRIBUTE | Place.CAPACITY:
            said = f'device.{SELECTED[key.place]}["{driver}"].{key.name} == device.driver'
            request["selectors"] = [{"cel": {"expression": said}}]
        case Place.MATCH:
            request["selectors"] = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
            devices["constraints"] = [{"matchAttribute": key.name}]
        case _:
            kind, _, path = key.name.rpartition(": ")
            value: Any = VALUES.get(key.name, VALUES.get(path, "x"))
            parameters: Dict = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind} if kind else {}
            if path.startswith(STRATEGY.partition(".")[0]):
                strategy = "TimeSlicing" if "timeSlicing" in path else "MPS"
                parameters["sharing"] = {"strategy": strategy}
            *above, last = path.split(".")
            place = parameters
            for name in above:
                place = place.setdefault(name, {})
            place[last] = value
            devices["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": request}], **devices}},
    }


@pytest.mark.parametrize(
    "key", keys(Place.CLASS, Place.ATTRIBUTE, Place.CAPACITY, Place.MATCH, Place.PARAMETER), ids=called
)
def test_what_a_claim_says_is_treated_as_the_table_says(key: Key) -> None:
    manifest = claim_with(key)
    found = convert_claims([manifest], target=KOORDRA)
    if key.treatment is Treatment.REFUSED:
        (note,) = found.refused
        assert not found.objects
        assert (note.problem, note.remedy) == (key.problem, key.remedy)
    else:
        assert not found.refused
        (made,) = found.objects
        assert DRIVERS[key.peer] not in json.dumps(made["spec"])
        assert made != manifest


def test_the_table_has_every_word_that_is_converted() -> None:
    for peer, words in zip(("nvidia-dra", "dranet"), TO_KOORDRA, strict=True):
        for place, found in (
            (Place.CLASS, words.classes.keys() | words.alone),
            (Place.ATTRIBUTE, words.attributes.keys() | words.expressions.keys()),
            (Place.CAPACITY, set(words.capacities)),
        ):
            rows = {key.name: key.treatment for key in KEYS if (key.peer, key.place) == (peer, place)}
            assert found <= rows.keys()
            assert {name for name, treatment in rows.items() if treatment is Treatment.TRANSLATED} <= found


@pytest.mark.parametrize(
    ("peer", "domain"), [(dialect.name, domain) for dialect in DIALECTS for domain in dialect.domains]
)
@pytest.mark.parametrize("kind", ["annotations", "labels"])
def test_what_the_table_lacks_is_told(peer: str, domain: str, kind: str) -> None:
    name = f"{domain}nobody-has-this"
    before = converted(asking(ASKED[peer])).notes
    found = converted(asking(ASKED[peer], **{kind: {name: "1"}}))
    (note,) = (note for note in found.notes if note not in before)
    assert note.field == f"metadata.{kind}[{name}]"
    assert note.refused or "no name that koordra reads" in note.problem


def test_kinds_and_settings_that_the_table_lacks_are_told() -> None:
    found = converted(object_of("Reserved.scheduling.koordinator.sh"))
    assert [note.problem for note in found.notes] == [
        "Reserved of scheduling.koordinator.sh is no kind that koordra knows, and stays as it is"
    ]
    text = "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCuont: 3}"
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"device-config.yaml": text},
    }
    result = CliRunner().invoke(convert_command, ["-f", "-"], input=yaml.safe_dump(config))
    assert "nvidia.deviceSplitCuont: is no setting that koordra knows" in result.stderr


def test_the_memory_that_a_node_gives_out_twice_refuses_its_pods() -> None:
    text = '{"nodeconfig": [{"name": "n", "devicememoryscaling": 1.8}]}'
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"config.json": text},
    }
    manifests = yaml.safe_dump_all([config, asking({"nvidia.com/gpumem": 10})])
    result = CliRunner().invoke(convert_command, ["-f", "-"], input=manifests)
    assert isinstance(result.exception, InvalidManifest)
    assert "deviceMemoryScaling: 1.8 gives out more memory than a card has" in result.stderr


@pytest.mark.parametrize("key", keys(*OF_PODS), ids=called)
def test_the_webhook_says_what_convert_says(key: Key) -> None:
    manifest, notes = example(key), Notes("Pod team/p")
    found = convert(manifest, key)
    if found.refused:
        with pytest.raises(InvalidManifest, match=re.escape(found.refused[0].problem)):
            Translations(settings_for(key)).of(manifest, notes)
    else:
        Translations(settings_for(key)).of(manifest, notes)
        assert list(map(str, notes.found)) == list(map(str, found.notes))
