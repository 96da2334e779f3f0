"""Claims that an API server refuses, each for one rule."""

from __future__ import annotations

from typing import Any, Final

from koordra.api.kinds import RESOURCE_CLAIMS

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
}


def refused_claim(case: str) -> Dict:
    metadata = {"name": case, "namespace": NAMESPACE}
    return {**RESOURCE_CLAIMS.type_meta, "metadata": metadata, "spec": {"devices": REFUSED[case]}}
