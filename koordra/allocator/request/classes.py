"""Which DeviceClasses are for koordra's devices; those that are deployed with it, for planning without a
cluster."""

from __future__ import annotations

import re
from typing import Any, Final

from koordra.api import names
from koordra.api.claims import DeviceClass

_SHIPPED: Final = frozenset(
    {names.CLASS_GPU, names.CLASS_MIG, names.CLASS_NIC, names.CLASS_VF, *names.IMEX_CLASSES}
)
_DRIVER_TEST: Final = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")

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


def is_koordra(device_class: DeviceClass) -> bool:
    return device_class.name in _SHIPPED or names.DRIVER in drivers_named(device_class)


def drivers_named(device_class: DeviceClass) -> set[str]:
    """Those that a selector of the class compares a device's driver with."""
    return {driver for expression in device_class.selectors for driver in _DRIVER_TEST.findall(expression)}
