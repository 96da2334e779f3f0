"""koordra's own DeviceClasses, for planning without a cluster."""

from __future__ import annotations

from typing import Any, Final

from koordra.api import names

_ALL_CHANNELS: Final = {
    "opaque": {
        "driver": names.DRIVER,
        "parameters": {"apiVersion": "koordra.io/v1alpha1", "kind": "ImexConfig", "channels": "All"},
    }
}


def shipped_classes() -> list[dict[str, Any]]:
    """The classes that every cluster with koordra has, as they are deployed."""
    kinds = {
        names.CLASS_GPU: names.TYPE_GPU,
        names.CLASS_MIG: names.TYPE_MIG,
        names.CLASS_NIC: names.TYPE_NIC,
        names.CLASS_VF: names.TYPE_VF,
        names.CLASS_IMEX: names.TYPE_IMEX,
        names.CLASS_IMEX_ALL: names.TYPE_IMEX,
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
                ],
                **({"config": [_ALL_CHANNELS]} if name == names.CLASS_IMEX_ALL else {}),
            },
        }
        for name, kind in kinds.items()
    ]
