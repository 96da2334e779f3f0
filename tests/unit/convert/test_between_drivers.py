"""Claims of v1 from NVIDIA's driver, and dranet, to koordra and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.api.classic.convert import convert
from koordra.api.classic.driver_words import DRANET
from koordra.api.classic.nvidia_parameters import KOORDRA, NVIDIA
from koordra.cel.selectors import compile_error
from koordra.cli.convert import convert_command

CASES = Path(__file__).parent / "drivers"
OF_NVIDIA = 'device.attributes["gpu.nvidia.com"]'
OF_KOORDRA = 'device.attributes["koordra.io"]'


@pytest.mark.parametrize(("name", "target"), [("nvidia", KOORDRA), ("dranet", KOORDRA), ("koordra", NVIDIA)])
def test_files_are_converted_as_recorded(name: str, target: str, golden: Callable[[str, str], None]) -> None:
    result = CliRunner().invoke(convert_command, ["-f", str(CASES / f"{name}.yaml"), "--to", target])
    golden(f"convert/{name}-driver.yaml", result.stdout)
    golden(f"convert/{name}-driver.notes.txt", result.stderr)


def claim(request: Any, **devices: Any) -> dict[str, Any]:
    requests = [{"name": "a", "exactly": request}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"devices": {"requests": requests, **devices}},
    }


def cel(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def config(driver: str, kind: str, **fields: Any) -> list[dict[str, Any]]:
    version = {"koordra.io": "koordra.io/v1alpha1"}.get(driver, "resource.nvidia.com/v1beta1")
    parameters = {"apiVersion": version, "kind": kind, **fields}
    return [{"requests": ["a"], "opaque": {"driver": driver, "parameters": parameters}}]


def test_there_and_back_it_is_the_same() -> None:
    before = claim(
        {
            "deviceClassName": "mig.nvidia.com",
            "count": 2,
            **cel(f'{OF_NVIDIA}.profile == "1g.5gb" && {OF_NVIDIA}.productName.contains("gpu.nvidia.com.x")'),
        },
        constraints=[
            {"requests": ["a"], "matchAttribute": "gpu.nvidia.com/parentUUID"},
            {"requests": ["a"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
        ],
    )
    there = convert([before], target=KOORDRA)
    assert not there.refused
    (made,) = there.objects
    assert "nvidia" not in yaml.safe_dump(made).replace("gpu.nvidia.com.x", "")
    (selector,) = made["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    assert compile_error(selector["cel"]["expression"]) is None
    assert convert([made], target=NVIDIA).objects == (before,)


def test_mps_there_and_back_it_is_the_same() -> None:
    sharing = config("gpu.nvidia.com", "GpuConfig", sharing={"strategy": "MPS"})
    before = claim({"deviceClassName": "gpu.nvidia.com"}, config=sharing)
    there = convert([before], target=KOORDRA)
    assert not there.refused
    assert convert(there.objects, target=NVIDIA).objects == (before,)


@pytest.mark.parametrize("target", [KOORDRA, NVIDIA])
@pytest.mark.parametrize(
    ("count", "said", "refused"),
    [
        (2, [("a", "mps")], True),
        (2, [("", "mps")], True),
        (1, [("a", "mps")], False),
        (2, [("b", "mps")], False),
        (2, [("a", "mps"), ("a", "timeslicing")], False),
        (2, [("a", "timeslicing"), ("", "mps")], True),
        (2, [("a", "mps"), ("a", "")], True),
    ],
)
def test_several_cards_by_mps_are_refused_as_at_admission(
    target: str, count: int, said: list[tuple[str, str]], refused: bool
) -> None:
    """Either way: koordra has no such claim. What is said last of a request decides."""
    words = {"mps": "MPS", "timeslicing": "TimeSlicing"}
    here, driver = ("gpu.nvidia.com",) * 2 if target == KOORDRA else ("gpu.koordra.io", "koordra.io")
    entries = []
    for request, word in said:
        of_koordra = {"isolation": word} if word else {}
        of_nvidia = {"sharing": {"strategy": words[word]}} if word else {}
        entries += config(driver, "GpuConfig", **(of_nvidia if target == KOORDRA else of_koordra))
        entries[-1]["requests"] = [request] if request else []
    obj = claim({"deviceClassName": here, "count": count}, config=entries)
    obj["spec"]["devices"]["requests"].append({"name": "b", "exactly": {"deviceClassName": here}})
    found = convert([obj], target=target)
    assert bool(found.refused) == refused
    for note in found.refused:
        assert note.field == "spec.devices.requests[0].exactly.count"
        assert "isolation mps: requested 2 cards, and a process is the client of one MPS" in note.problem
        assert note.remedy.startswith("make a claim for each card")


@pytest.mark.parametrize(
    ("obj", "target", "told"),
    [
        (claim({"deviceClassName": "vfio.gpu.nvidia.com"}), KOORDRA, "has no class beside it"),
        (
            claim(
                {"deviceClassName": "mig.nvidia.com"},
                config=config("gpu.nvidia.com", "MigDeviceConfig", sharing={"strategy": "MPS"}),
            ),
            KOORDRA,
            "koordra shares whole cards by it",
        ),
        (claim({"deviceClassName": "nic.koordra.io"}), NVIDIA, "has no class beside it"),
        (
            claim({"deviceClassName": "gpu.nvidia.com", **cel(f'{OF_NVIDIA}.brand == "Tesla"')}),
            KOORDRA,
            "koordra.io publishes no brand",
        ),
        (
            claim({"deviceClassName": "gpu.koordra.io", **cel(f"{OF_KOORDRA}.minor == 1")}),
            NVIDIA,
            "gpu.nvidia.com publishes no minor",
        ),
        (
            claim(
                {"deviceClassName": "gpu.nvidia.com", **cel('"uuid" in device.attributes["gpu.nvidia.com"]')}
            ),
            KOORDRA,
            "cannot be told apart",
        ),
        (
            claim({"deviceClassName": "gpu.koordra.io", "capacity": {"requests": {"memory": "1Gi"}}}),
            NVIDIA,
            "gpu.nvidia.com gives whole devices",
        ),
        (
            claim(
                {"deviceClassName": "gpu.koordra.io"},
                config=config("koordra.io", "JointAllocation", scope="PCIeRoot"),
            ),
            NVIDIA,
            "JointAllocation has no form",
        ),
        (
            claim(
                {"deviceClassName": "gpu.koordra.io"},
                config=config("koordra.io", "GpuConfig", memoryPercent=30),
            ),
            NVIDIA,
            "memoryPercent: has no form",
        ),
        (
            claim(
                {"deviceClassName": "gpu.nvidia.com"},
                config=config(
                    "gpu.nvidia.com",
                    "GpuConfig",
                    sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
                ),
            ),
            KOORDRA,
            "leaves the length of time slices",
        ),
        (
            claim({"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"shares": "1"}}}),
            KOORDRA,
            "koordra.io has no capacity shares",
        ),
        (
            claim({"deviceClassName": "own", **cel('device.attributes["oke.dra.net"].rackId == "r"')}),
            KOORDRA,
            "oke.dra.net publishes what a cloud says of its devices",
        ),
        (
            claim(
                {"deviceClassName": "own", **cel('device.driver == "dra.net"')},
                constraints=[{"requests": ["a"], "matchAttribute": "gce.dra.net/block"}],
            ),
            KOORDRA,
            "gce.dra.net publishes what a cloud says",
        ),
        (
            claim(
                {"deviceClassName": "gpu.nvidia.com"},
                constraints=[{"requests": ["a"], "matchAttribute": "gpu.nvidia.com/brand"}],
            ),
            KOORDRA,
            "koordra.io publishes no brand",
        ),
    ],
)
def test_what_has_no_form_there_is_refused(obj: dict[str, Any], target: str, told: str) -> None:
    found = convert([obj], target=target)
    assert not found.objects
    (note,) = found.refused
    assert told in str(note)
    assert note.remedy


def test_nics_go_to_dranet_with_their_class_and_back() -> None:
    before = claim(
        {"deviceClassName": "nic.koordra.io", **cel(f'{OF_KOORDRA}.netdev == "ens1f0"')},
        constraints=[{"requests": ["a"], "matchAttribute": "koordra.io/numaNode"}],
        config=config("koordra.io", "RdmaConfig", network={"interface": "rail0", "mtu": 4200}),
    )
    other = claim({"deviceClassName": "nic.koordra.io"})
    other["metadata"] = {"name": "other"}
    found = convert([before, other], target=DRANET)
    assert not found.refused
    made, device_class, _ = found.objects
    devices = made["spec"]["devices"]
    assert devices["requests"][0]["exactly"] == {
        "deviceClassName": "dranet-rdma",
        **cel('device.attributes["dra.net"].ifName == "ens1f0"'),
    }
    assert devices["constraints"] == [{"requests": ["a"], "matchAttribute": "dra.net/numaNode"}]
    assert devices["config"][0]["opaque"] == {
        "driver": "dra.net",
        "parameters": {"interface": {"name": "rail0", "mtu": 4200}},
    }
    assert (device_class["kind"], device_class["metadata"]["name"]) == ("DeviceClass", "dranet-rdma")
    assert compile_error(device_class["spec"]["selectors"][0]["cel"]["expression"]) is None
    back = convert(found.objects, target=KOORDRA)
    assert not back.refused
    there = back.objects[0]["spec"]["devices"]
    assert there["config"][0]["opaque"]["parameters"] == {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "RdmaConfig",
        "network": {"interface": "rail0", "mtu": 4200},
    }
    for selector in back.objects[1]["spec"]["selectors"]:
        assert "dra.net" not in selector["cel"]["expression"]
        assert compile_error(selector["cel"]["expression"]) is None


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (claim({"deviceClassName": "gpu.koordra.io"}), "gpu.koordra.io has no class beside it"),
        (
            claim({"deviceClassName": "nic.koordra.io", "capacity": {"requests": {"share": "10"}}}),
            "dra.net gives whole devices",
        ),
        (
            claim(
                {"deviceClassName": "nic.koordra.io"},
                config=config("koordra.io", "RdmaConfig", memlock=False),
            ),
            "memlock: has no form in dranet",
        ),
        (
            claim(
                {"deviceClassName": "nic.koordra.io"},
                config=config("koordra.io", "RdmaConfig", network={"kind": "Move"}),
            ),
            "kind: has no form in dranet",
        ),
        (
            claim(
                {"deviceClassName": "nic.koordra.io"},
                config=config("koordra.io", "PlacementPolicy", policy="x"),
            ),
            "PlacementPolicy has no form in dranet",
        ),
        (
            claim({"deviceClassName": "nic.koordra.io", **cel(f'{OF_KOORDRA}.guid == "x"')}),
            "dra.net publishes no guid",
        ),
    ],
)
def test_what_dranet_does_not_have_is_refused(obj: dict[str, Any], told: str) -> None:
    found = convert([obj], target=DRANET)
    assert not found.objects
    (note,) = found.refused
    assert told in str(note)


def test_without_a_target_v1_stays() -> None:
    obj = claim({"deviceClassName": "gpu.nvidia.com"})
    assert convert([obj]).objects == (obj,)
