"""Claims, templates and DeviceClasses that an API server refuses, each for one rule."""

from __future__ import annotations

from typing import Any, Final

from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind

Dict = dict[str, Any]
NAMESPACE: Final = "default"
CLASS: Final = "gpu.koordra.io"


def _request(name: Any = "gpu", **more: Any) -> Dict:
    return {"name": name, "exactly": {"deviceClassName": CLASS, **more}}


def _selected(expression: str) -> Dict:
    return {"requests": [_request(selectors=[{"cel": {"expression": expression}}])]}


def _opaque(**more: Any) -> Dict:
    opaque = {"driver": "koordra.io", "parameters": {}, **more}
    return {"requests": [_request()], "config": [{"opaque": opaque}]}


REFUSED: Final[dict[str, Dict]] = {
    "two-of-one-name": {"requests": [_request(), _request()]},
    "a-name-in-capitals": {"requests": [_request("GPU")]},
    "a-name-that-is-long": {"requests": [_request("g" * 64)]},
    "no-name": {"requests": [_request("")]},
    "no-class": {"requests": [{"name": "gpu", "exactly": {}}]},
    "neither-exactly-nor-first": {"requests": [{"name": "gpu"}]},
    "too-many-requests": {"requests": [_request(f"gpu-{number}") for number in range(33)]},
    "too-many-selectors": {"requests": [_request(selectors=[{"cel": {"expression": "true"}}] * 33)]},
    "too-many-alternatives": {
        "requests": [
            {
                "name": "gpu",
                "firstAvailable": [{"name": f"a{n}", "deviceClassName": CLASS} for n in range(9)],
            }
        ]
    },
    "a-negative-count": {"requests": [_request(count=-1)]},
    "all-and-a-count": {"requests": [_request(allocationMode="All", count=2)]},
    "an-unknown-mode": {"requests": [_request(allocationMode="Some")]},
    "an-empty-selector": _selected(""),
    "an-amount-that-is-none": {"requests": [_request(capacity={"requests": {"memory": "ten"}})]},
    "admin-access": {"requests": [_request(adminAccess=True)]},
    "a-constraint-on-nobody": {
        "requests": [_request()],
        "constraints": [{"requests": ["nic"], "matchAttribute": "koordra.io/numaNode"}],
    },
    "a-constraint-without-a-domain": {
        "requests": [_request()],
        "constraints": [{"matchAttribute": "numaNode"}],
    },
    "a-constraint-that-says-nothing": {"requests": [_request()], "constraints": [{}]},
    "a-configuration-of-nobody": _opaque(driver="Koordra_IO"),
    "a-toleration-with-a-value-too-much": {
        "requests": [_request(tolerations=[{"key": "k", "operator": "Exists", "value": "v"}])]
    },
    "a-toleration-of-another-effect": {"requests": [_request(tolerations=[{"key": "k", "effect": "Never"}])]},
    "a-field-that-there-is-not": {"requests": [_request(capcity={"requests": {"memory": "10Gi"}})]},
    "two-fields-that-there-are-not": {
        "requests": [{**_request(), "number": 2}],
        "restrictions": [{"matchAttribute": "koordra.io/numaNode"}],
    },
    "fields-of-a-version-before": {"requests": [{"name": "gpu", "deviceClassName": CLASS}]},
    "a-field-deep-down": _selected("true") | {"config": [{"opaqe": {"driver": "koordra.io"}}]},
}
"""`spec.devices`."""
_DEVICES: Final = {"requests": [_request()]}
_OTHERS: Final[dict[str, tuple[Kind, Dict]]] = {
    "a-misspelt-label": (
        RESOURCE_CLAIMS,
        {"metadata": {"lables": {"a": "b"}}, "spec": {"devices": _DEVICES}},
    ),
    "a-second-spec": (RESOURCE_CLAIMS, {"spec": {"devices": _DEVICES}, "specs": {}}),
    "template-without-its-inner-spec": (RESOURCE_CLAIM_TEMPLATES, {"spec": {"devices": _DEVICES}}),
    "template-of-a-misspelt-request": (
        RESOURCE_CLAIM_TEMPLATES,
        {"spec": {"spec": {"devices": {"requests": [_request(counts=2)]}}}},
    ),
    "template-with-two-of-one-name": (
        RESOURCE_CLAIM_TEMPLATES,
        {"spec": {"spec": {"devices": {"requests": [_request(), _request()]}}}},
    ),
    "template-with-a-label-that-is-none": (
        RESOURCE_CLAIM_TEMPLATES,
        {"spec": {"metadata": {"labels": {"a b": "c"}}, "spec": {"devices": _DEVICES}}},
    ),
    "template-of-an-amount-that-is-none": (
        RESOURCE_CLAIM_TEMPLATES,
        {"spec": {"spec": {"devices": {"requests": [_request(capacity={"requests": {"memory": "ten"}})]}}}},
    ),
    "template-for-admins": (
        RESOURCE_CLAIM_TEMPLATES,
        {"spec": {"spec": {"devices": {"requests": [_request(adminAccess=True)]}}}},
    ),
    "class-with-a-field-that-there-is-not": (DEVICE_CLASSES, {"spec": {"selector": []}}),
    "class-with-fields-of-a-version-before": (DEVICE_CLASSES, {"spec": {"suitableNodes": {}}}),
    "class-with-an-empty-selector": (
        DEVICE_CLASSES,
        {"spec": {"selectors": [{"cel": {"expression": ""}}]}},
    ),
    "class-with-a-selector-of-nothing": (DEVICE_CLASSES, {"spec": {"selectors": [{}]}}),
    "class-with-too-many-selectors": (
        DEVICE_CLASSES,
        {"spec": {"selectors": [{"cel": {"expression": "true"}}] * 33}},
    ),
    "class-with-a-resource-that-is-no-name": (DEVICE_CLASSES, {"spec": {"extendedResourceName": "a b/c"}}),
    "class-with-a-resource-of-nobody": (DEVICE_CLASSES, {"spec": {"extendedResourceName": "gpu"}}),
    "class-with-a-resource-of-kubernetes": (
        DEVICE_CLASSES,
        {"spec": {"extendedResourceName": "kubernetes.io/gpu"}},
    ),
    "class-with-a-resource-as-quotas-name-it": (
        DEVICE_CLASSES,
        {"spec": {"extendedResourceName": "requests.example.com/gpu"}},
    ),
    "class-configured-without-parameters": (
        DEVICE_CLASSES,
        {"spec": {"config": [{"opaque": {"driver": "koordra.io"}}]}},
    ),
    "Class-In-Capitals": (DEVICE_CLASSES, {"spec": {}}),
}
CASES: Final = (*REFUSED, *_OTHERS)


def refused_claim(case: str) -> Dict:
    return refused_object(case)[1]


def refused_object(case: str) -> tuple[Kind, Dict]:
    kind, said = _OTHERS.get(case, (RESOURCE_CLAIMS, {"spec": {"devices": REFUSED.get(case)}}))
    metadata = {"name": case, **({"namespace": NAMESPACE} if kind.namespaced else {})}
    return kind, {**kind.type_meta, **said, "metadata": {**metadata, **said.get("metadata", {})}}
