"""`koordra convert` on legacy pods, as a person runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koordra.cli.convert import convert_command as command
from koordra.errors import InvalidManifest
from tests.unit.compat.pods import Dict, asking, container, pod
from tests.unit.compat.rows import K, N, V

CASES = Path(__file__).parent / "cases"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), input=stdin)


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_files_are_converted_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    result = run("-f", str(CASES / f"{name}.yaml"), "--explain")
    golden(f"compat/{name}.yaml", result.stdout)
    golden(f"compat/{name}.notes.txt", result.stderr)


def test_json_is_the_pod_and_then_its_template() -> None:
    result = run("-f", "-", "-o", "json", "--explain", stdin=json.dumps(asking({N + "gpumem": 10})))
    listed = json.loads(result.stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert [item["kind"] for item in listed["items"]] == ["Pod", "ResourceClaimTemplate"]
    assert result.exit_code == 0
    assert result.stderr == "Pod team/p: container a: hami: 1 card, 10Mi of memory; request a\n"


@pytest.mark.parametrize(
    ("isolation", "counted"),
    [("none", True), ("limiter", True), ("timeslicing", True), ("mps", False), ("hami-core", False)],
)
def test_explain_says_accounting_only_of_compute_that_nothing_limits(
    tmp_path: Path, isolation: str, counted: bool
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"isolation": {"hami": isolation}}))
    asked = json.dumps(asking({N + "gpumem": 10, N + "gpucores": 30}))
    result = run("-f", "-", "--explain", "--settings", str(settings), stdin=asked)
    told = "30% of compute (accounting only); request a" if counted else "30% of compute; request a"
    assert told in result.stderr.splitlines()[0]


def test_without_explain_nothing_is_told_where_nothing_is_lost() -> None:
    assert run("-f", "-", stdin=json.dumps(asking({N + "gpumem": 10}))).stderr == ""


def test_a_refusal_names_the_field_and_ends_with_bad_input() -> None:
    manifests = [
        asking({N + "gpumem": 10, K + "gpu": 50}),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
    ]
    result = run("-f", "-", "-o", "json", stdin="\n".join(map(json.dumps, manifests)))
    assert isinstance(result.exception, InvalidManifest)
    assert result.exception.exit_code == 2
    assert [item["kind"] for item in json.loads(result.stdout)["items"]] == ["ConfigMap"]
    assert (
        "refused: Pod team/p: spec.containers[0].resources.limits[koordinator.sh/gpu]: is of Koordinator"
        in result.stderr
    )


def test_a_warning_ends_well() -> None:
    result = run("-f", "-", stdin=json.dumps(asking({"aliyun.com/gpu-mem": 5000})))
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "warning: Pod team/p: spec.containers[0].resources.limits[aliyun.com/gpu-mem]: "
    )


def workload(kind: str, manifest: Dict) -> Dict:
    template = {
        "metadata": {
            "labels": {"app": "a"},
            **{key: value for key, value in manifest["metadata"].items() if key == "annotations"},
        },
        "spec": manifest["spec"],
    }
    version = {"Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    spec: Dict = {"template": template}
    if kind == "CronJob":
        spec = {"schedule": "@daily", "jobTemplate": {"spec": spec}}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"replicas": 2, **spec},
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"])
def test_workloads_keep_everything_but_the_request(kind: str) -> None:
    manifest = workload(kind, asking({N + "gpumem": 10, "cpu": 1}, annotations={N + "use-gputype": "a100"}))
    made, template = json.loads(run("-f", "-", "-o", "json", stdin=json.dumps(manifest)).stdout)["items"]
    inner = made["spec"]["jobTemplate"]["spec"]["template"] if kind == "CronJob" else made["spec"]["template"]
    assert inner["spec"].pop("resourceClaims") == [
        {"name": "koordra-devices", "resourceClaimTemplateName": template["metadata"]["name"]}
    ]
    resources = inner["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": 1}, "claims": [{"name": "koordra-devices", "request": "a"}]}
    before = workload(kind, asking({N + "gpumem": 10, "cpu": 1}, annotations={N + "use-gputype": "a100"}))
    inner["spec"]["containers"][0]["resources"] = {"limits": {N + "gpumem": 10, "cpu": 1}}
    assert made == before
    assert template["metadata"]["namespace"] == "team"


def test_objects_with_several_pod_templates() -> None:
    tasks = [
        {"name": name, "template": {"spec": asking({V + "vgpu-memory": memory})["spec"]}}
        for name, memory in (("a", 1), ("b", 2), ("c", 1))
    ]
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"tasks": tasks},
    }
    made, *templates = json.loads(run("-f", "-", "-o", "json", stdin=json.dumps(job)).stdout)["items"]
    used = [
        task["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        for task in made["spec"]["tasks"]
    ]
    assert used[0] == used[2] != used[1]
    assert [template["metadata"]["name"] for template in templates] == used[:2]


def test_equal_pods_share_a_template_and_other_namespaces_have_their_own() -> None:
    one, two = asking({N + "gpumem": 10}), asking({N + "gpumem": 10})
    two["metadata"] = {"name": "q", "namespace": "team"}
    other = asking({N + "gpumem": 10})
    other["metadata"] = {"name": "p", "namespace": "other"}
    result = run("-f", "-", "-o", "json", stdin="\n".join(map(json.dumps, (one, two, other))))
    templates = [
        item["metadata"]
        for item in json.loads(result.stdout)["items"]
        if item["kind"] == "ResourceClaimTemplate"
    ]
    assert [metadata["namespace"] for metadata in templates] == ["team", "other"]
    assert len({metadata["name"] for metadata in templates}) == 1


def test_several_documents_in_yaml_keep_their_order() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}}
    text = yaml.safe_dump_all(
        [service, asking({"aliyun.com/gpu-mem": 1}), {**service, "metadata": {"name": "t"}}]
    )
    found = list(yaml.safe_load_all(run("-f", "-", stdin=text).stdout))
    assert [entry["kind"] for entry in found] == ["Service", "Pod", "ResourceClaimTemplate", "Service"]


DEVICE_CONFIG = """
nvidia:
  resourceCountName: corp.example/gpu
  resourceMemoryName: corp.example/mem
  resourceCoreName: corp.example/cores
  memoryFactor: 1024
  defaultCores: 5
  deviceMemoryScaling: {scaling}
  deviceSplitCount: 10
  migProfileAllowlist: [{{models: [A30], profiles: [1g.6gb]}}]
cambricon: {{resourceCountName: cambricon.com/vmlu}}
"""


def config_map(name: str, text: str) -> Dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"device-config.yaml": text},
    }


@pytest.mark.parametrize("form", ["file", "config map", "beside the pods"])
def test_hamis_device_config_is_read(form: str, tmp_path: Path) -> None:
    text, settings, pods = (
        DEVICE_CONFIG.format(scaling=1),
        tmp_path / "device-config.yaml",
        tmp_path / "pods.json",
    )
    pods.write_text(json.dumps(asking({"corp.example/gpu": 1, "corp.example/mem": 2})))
    settings.write_text(text if form == "file" else json.dumps(config_map("hami-scheduler-device", text)))
    option = "-f" if form == "beside the pods" else "--settings"
    result = run("-f", str(pods), option, str(settings), "-o", "json")
    items = {item["kind"]: item for item in json.loads(result.stdout)["items"]}
    (request,) = items["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"memory": "2Gi", "cores": "5"}


def test_memory_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    settings = tmp_path / "device-config.yaml"
    settings.write_text(DEVICE_CONFIG.format(scaling=1.5))
    result = run("-f", "-", "--settings", str(settings), stdin=json.dumps(asking({"corp.example/mem": 2})))
    assert isinstance(result.exception, InvalidManifest)
    assert "deviceMemoryScaling: 1.5 gives out more memory than a card has" in result.stderr


def test_volcanos_device_config_is_told_by_its_names(tmp_path: Path) -> None:
    settings = tmp_path / "c.yaml"
    settings.write_text(
        "nvidia: {resourceCountName: volcano.sh/vgpu-number, resourceMemoryName: volcano.sh/mem, gpuMemoryFactor: 10}"
    )
    result = run(
        "-f", "-", "--settings", str(settings), "-o", "json", stdin=json.dumps(asking({"volcano.sh/mem": 3}))
    )
    (request,) = json.loads(result.stdout)["items"][1]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"memory": "30Mi"}


def test_the_default_dialect_is_an_option() -> None:
    stdin = json.dumps(asking({N + "gpu": 1}))
    found = [
        json.loads(run("-f", "-", "-o", "json", *option, stdin=stdin).stdout)["items"][1]["metadata"][
            "labels"
        ]
        for option in ((), ("--default-dialect", "hami"), ("--default-dialect", "koordinator"))
    ]
    assert [labels["koordra.io/dialect"] for labels in found] == ["plain", "hami", "koordinator"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dialects: x", "dialects: is no setting"),
        ("defaultDialect: tke", "defaultDialect: 'tke' is not allowed"),
        ("aliyun: {memoryUnit: MB}", "aliyun.memoryUnit: 'MB' is not allowed"),
        ("aliyun: {unit: MiB}", "aliyun: has other fields"),
        ("names: {a: 1}", "names.a: 1 is not text"),
        ("isolation: {aliyun: magic}", "isolation.aliyun: 'magic' is not allowed"),
        ("hami: {memoryFactor: -1}", "memoryFactor: -1 is not a whole number"),
        ("nvidia: {deviceMemoryScaling: much}", "deviceMemoryScaling: 'much' is not a number"),
        ("nvidia: {gpuCorePolicy: hard}", "gpuCorePolicy: 'hard' is not allowed"),
        ("plain: {replicas: 0}", "plain.replicas: 0 is not a whole number from 1 up"),
        ("- 1", "is not an object"),
        ("{", "is not YAML"),
    ],
)
def test_settings_are_read_strictly(text: str, told: str, tmp_path: Path) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text(text)
    result = run("-f", "-", "--settings", str(settings), stdin=json.dumps(asking({N + "gpu": 1})))
    assert isinstance(result.exception, InvalidManifest)
    assert told in str(result.exception)


def test_all_settings_of_koordras_own_form(tmp_path: Path) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text(
        "defaultDialect: hami\nisolation: {aliyun: limiter}\naliyun: {memoryUnit: MiB}\nvolcanoGpu: {gpuMemoryFactor: 2}\n"
        "elastic: {memoryUnit: GiB}\nplain: {replicas: 2}\nhami: {defaultGPUNum: 2}\nvolcano: {gpuMemoryFactor: 4}\n"
    )
    asked = [
        {N + "gpumem": 1},
        {"aliyun.com/gpu-mem": 5},
        {V + "gpu-memory": 5},
        {"elasticgpu.io/gpu-memory": 1},
        {V + "vgpu-memory": 1},
    ]
    found = []
    for ask in asked:
        result = run("-f", "-", "--settings", str(settings), "-o", "json", stdin=json.dumps(asking(ask)))
        (request,) = json.loads(result.stdout)["items"][1]["spec"]["spec"]["devices"]["requests"]
        found.append((request["exactly"]["count"], request["exactly"]["capacity"]["requests"]["memory"]))
    assert found == [(2, "1Mi"), (1, "5Mi"), (1, "10Mi"), (1, "1Gi"), (1, "4Mi")]


BROKEN: list[tuple[Any, str]] = [
    (
        {"containers": [{"name": "a", "resources": {"limits": {N + "gpu": 1}}}, 7]},
        "spec.containers[1]: is not an object",
    ),
    (
        {"containers": [{"name": "a", "resources": {"limits": {N + "gpu": 1}, "claims": 3}}]},
        "resources.claims: is not a list",
    ),
    (
        {"containers": [{"name": "a", "resources": {"limits": {N + "gpu": 1}, "requests": 3}}]},
        "resources.requests: is not an object",
    ),
    ({"containers": [{"name": "a", "resources": {"limits": {N + "gpu": [1]}}}]}, "a quantity is text"),
    ({"containers": [{"name": "a", "resources": {"limits": {N + "gpu": True}}}]}, "a quantity is text"),
    (
        {"containers": [{"name": "a", "resources": {"limits": {N + "gpu": 1}}}], "resourceClaims": 3},
        "spec.resourceClaims: is not a list",
    ),
]


@pytest.mark.parametrize(("spec", "told"), BROKEN)
def test_broken_pods_are_told_field_by_field(spec: Any, told: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    result = run("-f", "-", stdin=json.dumps(manifest))
    assert isinstance(result.exception, InvalidManifest)
    assert told in result.stderr


def test_annotations_that_are_no_text_are_told() -> None:
    manifest = asking({"tencent.com/vcuda-core": 100})
    manifest["metadata"]["annotations"] = {"tencent.com/vcuda-core-limit": 50}
    result = run("-f", "-", stdin=json.dumps(manifest))
    assert "50 is not a text; put it in quotes" in result.stderr


LIMIT_RANGE = (
    "is set in containers that do not ask by this name, or refuses their pods, and converted pods do not ask by it; "
    "take it out, and bound requests.koordra.io/gpu,"
)
OUTSIDE = [
    (
        {
            "apiVersion": "x.example/v1",
            "kind": "Clique",
            "spec": {"podSpec": {"containers": [container(ask={N + "gpu": 1})]}},
        },
        "spec.podSpec.containers[0].resources.limits[nvidia.com/gpu]: asks for devices outside of a pod",
    ),
    (
        {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"requests.nvidia.com/gpu": 4}}},
        "counts converted pods only where component legacy is installed; bound requests.koordra.io/gpu,",
    ),
    (
        {"apiVersion": "x.example/v1", "kind": "Bound", "spec": {"hard": {"nvidia.com/gpu": 4}}},
        "spec.hard[nvidia.com/gpu]: counts devices by a name that claims do not use; bound requests",
    ),
    *(
        (
            {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "spec": {"limits": [{"type": "Container", word: {"cpu": 4, N + "gpu": 2}}]},
            },
            f"warning: LimitRange x: spec.limits[0].{word}[nvidia.com/gpu]: {LIMIT_RANGE}",
        )
        for word in ("max", "min", "default", "defaultRequest")
    ),
    (
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "spec": {
                "templates": [
                    {"name": "t", "container": {"resources": {"limits": {"alnair/vgpu-memory": 1}}}}
                ]
            },
        },
        "outside of a pod",
    ),
]


@pytest.mark.parametrize(("manifest", "told"), OUTSIDE)
def test_legacy_names_outside_of_pods_are_told(manifest: Dict, told: str) -> None:
    manifest = {**manifest, "metadata": {"name": "x"}}
    result = run("-f", "-", "-o", "json", stdin=json.dumps(manifest))
    assert json.loads(result.stdout)["items"] == [manifest]
    assert told in result.stderr
    assert result.exit_code == 0


def test_a_pod_of_an_api_server_becomes_a_new_one() -> None:
    manifest = pod(container(ask={N + "gpumem": 10}))
    manifest["metadata"] |= {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    manifest["status"] = {"phase": "Running"}
    made = json.loads(run("-f", "-", "-o", "json", stdin=json.dumps(manifest)).stdout)["items"][0]
    assert "status" not in made
    assert made["metadata"] == {"name": "p", "namespace": "team"}
