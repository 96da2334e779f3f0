"""koordra's chart, rendered by Helm itself (the library that PyPI's helm-python-sdk brings)."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.controller.quota.scope import WEBHOOKS
from tests.fakes.kustomized import DISTRIBUTIONS, ROOT, Objects

CHART = ROOT.parent / "helm" / "koordra"
PLAIN = {"createNamespace": True, "keepKinds": False}
"""Values with which the chart says of base what kustomize does."""


def helm() -> Any:
    return pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")


def rendered(chart: Path = CHART, *, namespace: str = "koordra-system", **values: Any) -> Objects:
    """By kind and name. Raises helm_python.HelmError."""
    with helm().Chart.load(str(chart)) as loaded:
        files = loaded.render(values, name="koordra", namespace=namespace)
    found = [one for one in yaml.load_all(files["koordra/templates/koordra.yaml"], yaml.CSafeLoader) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def left_to_the_leader(objects: Objects) -> Objects:
    """Without the quota webhooks' namespaces, which kustomize says at first, and the chart never."""
    found = copy.deepcopy(objects)
    for entry in found["ValidatingWebhookConfiguration", "koordra"]["webhooks"]:
        if entry["name"] in WEBHOOKS:
            del entry["namespaceSelector"]
    return found


@functools.cache
def of_components(*components: str) -> Objects:
    """What the chart renders where kustomize has these on top of base. Not to be changed."""
    (distribution,) = [name for name in components if name in DISTRIBUTIONS] or [""]
    others = [name for name in components if name != distribution]
    return rendered(components=others, distribution=distribution.removeprefix("distribution/"), **PLAIN)
