"""deploy/helm/koordra, by Helm itself: what it accepts, that every value does something, and its package.
That it renders what kustomize does, test_components.py says of every component."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.chart import CHART, PLAIN, helm, rendered
from tests.fakes.kustomized import COMPONENTS, DISTRIBUTIONS, Objects, defects

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
POD = {"priorityClassName": "mine"}
ALL = ["dashboard", "gpu-operator", "imex", "legacy", "profiler"]
"""Components with every workload there is."""
OTHERS: dict[str, Any] = {
    "image.repository": "registry.example/koordra",
    "image.tag": "0.2.0",
    "image.pullPolicy": "Always",
    "image.pullSecrets": [{"name": "registry"}],
    "components": [*ALL, "elastic"],
    "distribution": "k0s",
    "createNamespace": True,
    "keepKinds": False,
    "configMaps": {"koordra-legacy-settings": {"settings.yaml": "defaultDialect: hami\n"}},
    "controller.replicas": 3,
    **{
        f"{program}.{key}": value
        for program in ("controller", "dashboard", "profiler", "kubeletPlugin", "nri", "imex", "driverClient")
        for key, value in {
            "args": ["--log-level=debug"],
            "resources": {"limits": {"memory": "2Gi"}},
            "pod": POD,
        }.items()
    },
}
"""Another value for each."""


@functools.cache
def plain() -> Objects:
    return rendered(**{**VALUES, "components": ALL})


def leaves(values: dict[str, Any], above: str = "") -> list[str]:
    return [
        leaf
        for key, value in values.items()
        for leaf in (leaves(value, f"{above}{key}.") if isinstance(value, dict) and value else [above + key])
    ]


def changed(path: str, value: Any) -> dict[str, Any]:
    found = copy.deepcopy(VALUES) | {"components": ALL}
    *above, last = path.split(".")
    place = found
    for key in above:
        place = place[key]
    place[last] = value
    return found


def test_helm_finds_nothing_to_complain_of() -> None:
    for components in ([], ALL):
        found = helm().lint(
            str(CHART), values={"components": components}, namespace="koordra-system", strict=True
        )
        assert not found["errors"]
        assert {one["error"] for one in found["messages"]} <= {"icon is recommended"}


def test_the_values_are_those_of_the_schema_and_each_has_a_comment() -> None:
    assert sorted(leaves(VALUES)) == sorted(OTHERS)
    lines = (CHART / "values.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*[a-zA-Z]+:", line) and not re.match(r"(image|kubeletPlugin|nri|imex):$", line):
            assert lines[number - 1].lstrip().startswith("#"), line
    with helm().Chart.load(str(CHART)) as chart:
        schema = chart.schema
        assert schema["properties"].keys() - {"global"} == VALUES.keys()
        assert set(schema["properties"]["components"]["items"]["enum"]) == {*COMPONENTS} - {*DISTRIBUTIONS}
        names = {f"distribution/{name}" for name in schema["properties"]["distribution"]["enum"] if name}
        assert names == {*DISTRIBUTIONS}


@pytest.mark.parametrize("path", OTHERS)
def test_every_value_does_something(path: str) -> None:
    assert rendered(**changed(path, OTHERS[path])) != plain()


def test_values_reach_what_they_name_and_nothing_else() -> None:
    other = rendered(**changed("imex.pod", POD))
    assert [name for name, obj in plain().items() if obj != other[name]] == [("DaemonSet", "koordra-imex")]
    settings = rendered(**changed("configMaps", OTHERS["configMaps"]))["ConfigMap", "koordra-legacy-settings"]
    assert settings["data"] == {"settings.yaml": "defaultDialect: hami\n"}
    image = rendered(components=["nic-functions"], image={"repository": "r.example/k", "tag": "1"})
    pod = image["DaemonSet", "koordra-kubelet-plugin"]["spec"]["template"]["spec"]
    assert {each["image"] for each in (*pod["initContainers"], *pod["containers"])} == {"r.example/k:1"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"components": ["legasy"]}, "components"),
        ({"components": ["legacy", "legacy"]}, "components"),
        (
            {"components": ["driver-upgrade", "gpu-operator"]},
            "component driver-upgrade brings .*, which another one has brought: leave one of them out",
        ),
        ({"components": ["distribution/k3s"]}, "components"),
        ({"distribution": "kind"}, "distribution"),
        ({"controler": {}}, "controler"),
        ({"controller": None}, "missing property 'controller'"),
        ({"nri": {"args": None}}, "missing property 'args'"),
        ({"controller": {"replicas": 0}}, "replicas"),
        ({"imex": {"pod": {"volumes": []}}}, "imex.pod.volumes: would take the place of koordra's own"),
        ({"nri": {"args": "--log-json"}}, "args"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        (
            {"configMaps": {"koordra-legacy-settings": {"a": "b"}}},
            "no component of these brings such a ConfigMap",
        ),
        (
            {"components": ["legacy"], "configMaps": {"koordra-legacy-settings": {"legacy.yaml": "a"}}},
            "nothing reads such a key of it; it has: settings.yaml",
        ),
        ({"configMaps": {"koordra-quota": {"quota.json": "{}"}}}, "it has: none of yours"),
    ],
    ids=str,
)
def test_what_means_nothing_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm().HelmError, match=words):
        rendered(**values)


def test_the_config_maps_and_keys_that_the_comment_names_are_there() -> None:
    above = (CHART / "values.yaml").read_text().partition("\nconfigMaps:")[0].rpartition("\n\n")[2]
    named = re.findall(r'(koordra-[a-z-]+): \{([a-z.]+): "\.\.\."\} of (?:the component )?([a-z-]+)', above)
    assert len(named) == 3
    for name, key, component in named:
        of_component = rendered(components=[component], configMaps={name: {key: "mine"}})
        assert of_component["ConfigMap", name]["data"] == {key: "mine"}


def test_another_namespace_is_refused() -> None:
    with pytest.raises(helm().HelmError, match="--namespace koordra-system"):
        rendered(namespace="default")


def test_kinds_are_kept_unless_said_otherwise_and_the_namespace_is_helms() -> None:
    objects = rendered()
    kinds = [obj for (kind, _), obj in objects.items() if kind == "CustomResourceDefinition"]
    assert kinds
    assert all(obj["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for obj in kinds)
    assert ("Namespace", "koordra-system") not in objects
    assert not defects(rendered(image={"repository": "koordra"}))


def test_the_package_renders_the_same_far_from_the_repository(tmp_path: Path) -> None:
    archive = helm().package(str(CHART), destination=str(tmp_path))
    assert rendered(Path(archive), **PLAIN) == rendered(**PLAIN)
