"""What kustomize makes of deploy/kustomize, and what is wrong with it that a cluster would find out late."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from koordra.cli.main import cli

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]
"""By kind and name."""

ROOT = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"
WORKLOADS = ("Deployment", "DaemonSet")
PATCHED = (
    "controller/deployment.yaml",
    "controller/serviceaccount.yaml",
    "kubelet-plugin/daemonset.yaml",
    "kubelet-plugin/serviceaccount.yaml",
    "nri/daemonset.yaml",
    "nri/serviceaccount.yaml",
)
"""Of base, the objects that components patch, and what these name: a third of the work of all of base."""
BASE_COMPONENT = "device-nodes"
COMPONENTS = tuple(
    name
    for path in sorted(ROOT.rglob("kustomization.yaml"))
    if yaml.safe_load(path.read_text())["kind"] == "Component"
    and (name := path.parent.relative_to(ROOT).as_posix()) != BASE_COMPONENT
)
DISTRIBUTIONS = tuple(name for name in COMPONENTS if name.startswith("distribution/"))
IMAGE = "koordra:0.1.0a1"


class Refused(Exception):
    """kustomize builds nothing of it; its words."""


def built(folder: Path, *components: str, bases: Sequence[str] = ("base",)) -> Objects:
    """`folder` is one of the caller's own."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here, whose kustomize builds the components")
    folder.mkdir(exist_ok=True)
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / name, folder) for name in bases],
        "components": [os.path.relpath(ROOT / name, folder) for name in components],
    }
    folder.joinpath("kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Refused(ran.stderr.strip().splitlines()[-1])
    found = [one for one in yaml.load_all(ran.stdout, Loader=yaml.CSafeLoader) if one]
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(by_name) == len(found), "two objects of one kind and name in different namespaces"
    return by_name


def in_order(components: Sequence[str]) -> tuple[str, ...]:
    """As docs/install.md has them: a distribution comes last."""
    return tuple(sorted(components, key=lambda name: (name in DISTRIBUTIONS, name)))


def defects(objects: Objects) -> list[str]:
    """In words; empty for what can be installed."""
    return [
        f"{kind} {name}: {word}"
        for (kind, name), obj in objects.items()
        for word in (
            *(_of_pod(objects, obj["spec"]["template"]["spec"]) if kind in WORKLOADS else ()),
            *(_of_binding(objects, obj) if kind in ("ClusterRoleBinding", "RoleBinding") else ()),
            *(_of_selector(objects, obj["spec"]) if kind in ("PodDisruptionBudget", "Service") else ()),
        )
    ]


def _of_pod(objects: Objects, pod: Object) -> Iterator[str]:
    volumes = Counter(volume["name"] for volume in pod["volumes"])
    mounted: set[str] = set()
    account = pod.get("serviceAccountName", "default")
    if account != "default" and ("ServiceAccount", account) not in objects:
        yield f"no ServiceAccount {account}"
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        if container["image"] != IMAGE:
            yield f"image {container['image']}"
        places = Counter(mount["mountPath"] for mount in container.get("volumeMounts", ()))
        yield from (f"mounted twice: {place}" for place, times in places.items() if times > 1)
        names = {mount["name"] for mount in container.get("volumeMounts", ())}
        yield from (f"no volume {name}" for name in names - volumes.keys())
        mounted |= names
        variables = Counter(each["name"] for each in container.get("env", ()))
        yield from (f"set twice: {name}" for name, times in variables.items() if times > 1)
        yield from _of_arguments(container["args"])
    yield from (f"volume {name} twice" for name, times in volumes.items() if times > 1)
    yield from (f"volume {name} is mounted nowhere" for name in volumes.keys() - mounted)
    for volume in pod["volumes"]:
        source = volume.get("configMap")
        if source and not source.get("optional") and ("ConfigMap", source["name"]) not in objects:
            yield f"no ConfigMap {source['name']}"


def _of_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """What koordra's command line says of them."""
    flags = Counter(re.split("=", each)[0] for each in arguments if each.startswith("--"))
    yield from (f"{flag} twice" for flag, times in flags.items() if times > 1)
    command: click.Command = cli
    rest = list(arguments)
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        if found is None:
            yield f"no such command: {arguments}"
            return
        command = found
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    yield from (f"no option {flag}" for flag in flags if flag not in known)


def _of_binding(objects: Objects, binding: Object) -> Iterator[str]:
    role = binding["roleRef"]
    if role["name"].startswith("koordra") and (role["kind"], role["name"]) not in objects:
        yield f"no {role['kind']} {role['name']}"
    for subject in binding["subjects"]:
        if subject["kind"] == "ServiceAccount" and ("ServiceAccount", subject["name"]) not in objects:
            yield f"no ServiceAccount {subject['name']}"


def _of_selector(objects: Objects, spec: Object) -> Iterator[str]:
    wanted = spec["selector"].get("matchLabels", spec["selector"]).items()
    pods = [obj["spec"]["template"]["metadata"] for (kind, _), obj in objects.items() if kind in WORKLOADS]
    if not any(wanted <= pod["labels"].items() for pod in pods):
        yield "selects no pod"
