"""koordra's own DeviceClasses, for planning without a cluster."""

from __future__ import annotations

from typing import Any

from koordra.api import names


def shipped_classes() -> list[dict[str, Any]]:
    """The classes that every cluster with koordra has, as they are deployed."""
    kinds = {
        names.CLASS_GPU: names.TYPE_GPU,
        names.CLASS_MIG: names.TYPE_MIG,
        names.CLASS_NIC: names.TYPE_NIC,
        names.CLASS_VF: names.TYPE_VF,
    }
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {
                "selectors": [
                    {
                        "cel": {
                            "expression": f'device.driver == "{names.DRIVER}" && '
                            f'device.attributes["{names.DRIVER}"].type == "{kind}" && '
                            f'device.attributes["{names.DRIVER}"].allocator == "{names.ALLOCATOR_SCHEDULER}"'
                        }
                    }
                ]
            },
        }
        for name, kind in kinds.items()
    ]
