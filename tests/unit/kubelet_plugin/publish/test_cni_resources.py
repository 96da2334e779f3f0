"""The two attributes by which Multus gives a network the device of koordra's allocation."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.errors import InvalidInput
from koordra.kubelet_plugin.publish.cni_resources import cni_resources
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from tests.machines import catalogue

DEVICE_ID, RESOURCE = "k8s.cni.cncf.io/deviceID", "k8s.cni.cncf.io/resourceName"


def found(machine: str, *options: str) -> dict[str, tuple[Any, Any]]:
    """What Multus reads of each NIC: its draclient takes a string of either attribute."""
    offering = Offering(vfs=True, cni=cni_resources(options))
    return {
        device["name"]: (
            device["attributes"].get(DEVICE_ID, {}).get("string"),
            device["attributes"].get(RESOURCE, {}).get("string"),
        )
        for device in build_devices(catalogue.machine(machine), mode="joint", offering=offering)
        if device["name"].startswith("nic-")
    }


def test_virtual_functions_are_found_by_their_own_address() -> None:
    told = found("nic-2-ports-8-vfs", "vf=openshift.io/rails")
    assert told["nic-0000-5e-00-0"] == (None, None)
    assert told["nic-0000-5e-00-0-vf-0"] == ("0000:5e:00.1", "openshift.io/rails")
    assert told["nic-0000-5e-00-0-vf-7"] == ("0000:5e:01.0", "openshift.io/rails")


def test_a_rail_may_have_a_name_of_its_own() -> None:
    told = found("hgx-h100", "nic/0=example.com/rail0", "nic=example.com/any")
    assert told["nic-0000-0c-00-0"] == ("0000:0c:00.0", "example.com/rail0")
    assert {name for _, name in told.values()} == {"example.com/rail0", "example.com/any"}


def test_without_a_name_nothing_is_said() -> None:
    assert set(found("hgx-h100").values()) == {(None, None)}


@pytest.mark.parametrize(
    "option", ["vf", "vf=rails", "gpu=a.b/c", "vf/x=a.b/c", f"vf=a.b/{'c' * 62}", "=a.b/c"]
)
def test_options_that_name_nothing_are_refused(option: str) -> None:
    with pytest.raises(InvalidInput, match="--cni-resource"):
        cni_resources([option])
