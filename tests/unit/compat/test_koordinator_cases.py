"""Koordinator's own cases: validation, conversion, splitting, counts of NICs, virtual NPUs. All of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koordra.compat.dialects.koordinator import requests as arithmetic
from koordra.quantity import to_int
from tests.unit.compat.pods import asking, container, converted, pod, spec_of

Templates = Mapping[str, Mapping[str, arithmetic.Amounts]]
"""`<vendor>-<model>` -> name -> amounts, as in Koordinator's ConfigMap gpu-shared-resource-templates."""

_COUNTED = (arithmetic.NPU_CORE, arithmetic.NPU_CPU, arithmetic.NPU_DVPP, arithmetic.MEMORY)


def matching(templates: Templates, key: str, request: arithmetic.Amounts) -> str | None:
    """The template of `<vendor>-<model>` that is exactly the request, the first by name."""
    wanted = _counted(request)
    return next(
        (name for name, amounts in sorted(templates.get(key, {}).items()) if _counted(amounts) == wanted),
        None,
    )


def _counted(amounts: arithmetic.Amounts) -> dict[str, int]:
    return {name: amounts[name] for name in _COUNTED if amounts.get(name)}


def place(
    templates: Templates, key: str, request: arithmetic.Amounts, free: Sequence[arithmetic.Amounts]
) -> tuple[int, str] | None:
    """(card, template) for a request, given what each card has left; None where none has room or no template
    fits."""
    name = matching(templates, key, request)
    if name is None:
        return None
    wanted = _counted(request)
    for card, left in enumerate(free):
        if all(left.get(part, 0) >= amount for part, amount in wanted.items()):
            return card, name
    return None


Dict = dict[str, Any]

FOREIGN = ("dcu.com/", "amd.com/", "huawei.com/", "koordinator.sh/fpga")


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> Dict:
    found: Dict = json.loads((shared_data / "koordinator" / "cases.json").read_text())
    return found


def amounts(request: Dict) -> dict[str, int]:
    return {name: to_int(value) for name, value in request.items()}


def test_all_cases_are_there(cases: Dict) -> None:
    counts = {name: len(cases[name]) for name in cases if name.endswith("_cases")}
    assert (counts["validate_cases"], counts["convert_cases"]) == (30, 10)
    assert (counts["per_gpu_split_cases"], counts["rdma_count_cases"], counts["npu_template_cases"]) == (
        6,
        6,
        4,
    )


def test_validation(cases: Dict) -> None:
    for case in cases["validate_cases"]:
        found = "accept" if arithmetic.problem_of(amounts(case["request"])) is None else "reject"
        assert found == case["expect"], case["id"]


def test_validation_of_whole_pods(cases: Dict) -> None:
    """What Koordinator turns down is no claim, what it takes is one, but for other vendors' devices."""
    for case in cases["validate_cases"]:
        if not case["request"]:
            continue
        conversion = converted(asking(case["request"]))
        foreign = any(name.startswith(FOREIGN) for name in case["request"])
        # The webhook completes a container before anything is checked: core without memory stays wrong.
        accepted = case["expect"] == "accept" and not foreign
        assert bool(conversion.refused) != accepted, case["id"]


def test_conversion(cases: Dict) -> None:
    for case in cases["convert_cases"]:
        assert arithmetic.converted(amounts(case["request"])) == amounts(case["expect_normalised"]), case[
            "id"
        ]


def test_splitting(cases: Dict) -> None:
    for case in cases["per_gpu_split_cases"]:
        found = arithmetic.split(arithmetic.converted(amounts(case["request"])))
        expect = case["expect"]
        assert found.count == expect["number_of_gpus"], case["id"]
        assert found.shared == expect["shared"], case["id"]
        assert found.each == amounts(expect["per_gpu"]), case["id"]


def test_splitting_of_whole_pods(cases: Dict) -> None:
    seen = 0
    for case in cases["per_gpu_split_cases"]:
        if any(name.startswith(FOREIGN) for name in case["request"]):
            continue
        seen += 1
        devices = spec_of(asking(case["request"]))
        (request,) = devices["requests"]
        exactly, each = request["exactly"], case["expect"]["per_gpu"]
        assert exactly["count"] == case["expect"]["number_of_gpus"]
        capacity = exactly["capacity"]["requests"]
        assert int(capacity["cores"]) == each["koordinator.sh/gpu-core"]
        ratio = each.get("koordinator.sh/gpu-memory-ratio")
        percents = [entry["opaque"]["parameters"].get("memoryPercent") for entry in devices.get("config", ())]
        assert percents == ([] if ratio in (None, 100) else [ratio])
        assert ("memory" in capacity) == (ratio is None)
    assert seen == 4


def test_counts_of_nics(cases: Dict) -> None:
    labels = [{"type": "fakeW"}] * 4 + [{"type": "fakeS"}]
    for case in cases["rdma_count_cases"]:
        hint = case["hint"]
        count, each = arithmetic.nics(
            case["request"]["koordinator.sh/rdma"],
            hint.get("allocateStrategy", ""),
            exclusive=hint.get("exclusivePolicy") == "DeviceLevel",
        )
        if count == arithmetic.ALL:
            matching = sum(_matches(hint["selector"], entry) for entry in labels)
            found = {"count": matching, "per_device": each} if matching else "unschedulable"
        else:
            found = {"count": count, "per_device": each}
        assert found == case["expect"], case["id"]


def _matches(selector: Dict, labels: Dict) -> bool:
    exact = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return exact and all(term["key"] in labels for term in selector.get("matchExpressions", ()))


def test_counts_of_nics_in_claims(cases: Dict) -> None:
    for case in cases["rdma_count_cases"]:
        annotations = {"scheduling.koordinator.sh/device-allocate-hint": json.dumps({"rdma": case["hint"]})}
        (request,) = spec_of(pod(container(ask=case["request"]), annotations=annotations))["requests"]
        exactly = request["exactly"]
        if case["hint"]["allocateStrategy"] == "ApplyForAll":
            assert exactly["allocationMode"] == "All"
            assert exactly["capacity"]["requests"]["share"] == "1"
            selector = case["hint"]["selector"]
            keys = [
                *selector.get("matchLabels", {}),
                *(term["key"] for term in selector.get("matchExpressions", ())),
            ]
            assert f'"{keys[0]}" in device.attributes' in exactly["selectors"][0]["cel"]["expression"]
        else:
            assert exactly["count"] == case["expect"]["count"]
            assert int(exactly["capacity"]["requests"]["share"]) == case["expect"]["per_device"]


# The sizes of the upstream test's ConfigMap: (core, cpu, dvpp, GiB).
SIZES = {
    "vir01": (1, 1, 12, 3),
    "vir02": (2, 2, 25, 6),
    "vir02_1c": (2, 1, 25, 6),
    "vir04": (4, 4, 50, 12),
    "vir04_3c": (4, 3, 50, 12),
    "vir04_3c_ndvpp": (4, 3, 0, 12),
    "vir04_4c_dvpp": (4, 4, 100, 12),
}
NPU = (arithmetic.NPU_CORE, arithmetic.NPU_CPU, arithmetic.NPU_DVPP, arithmetic.MEMORY)


def _npu(core: int, cpu: int, dvpp: int, gib: int) -> dict[str, int]:
    return dict(zip(NPU, (core, cpu, dvpp, gib << 30), strict=True))


def test_virtual_npus(cases: Dict) -> None:
    templates = {"huawei-Ascend-310P": {name: _npu(*sizes) for name, sizes in SIZES.items()}}
    whole = _npu(8, 7, 100, 24)
    last: dict[str, int] = {}
    for case in cases["npu_template_cases"]:
        figures = re.fullmatch(r"shared 1; core (\d+),cpu (\d+),dvpp (\d+),(\d+)Gi", case["request"])
        if figures:
            last = _npu(*map(int, figures.groups()))
        else:
            assert case["request"].startswith("same as")
        held = 8 if "all 8" in case.get("already", "") else 1
        left = {name: whole[name] - _npu(*SIZES["vir04"])[name] for name in whole}
        free = [left if card < held else whole for card in range(8)]
        key = "nvidia-H100" if "NVIDIA node" in case.get("node", "") else "huawei-Ascend-310P"
        assert arithmetic.problem_of({**last, arithmetic.SHARED: 1}) is None
        found = place(templates, key, last, free)
        expect = case["expect"]
        assert found == (None if expect == "fail" else (expect["gpu"][0], expect["template"])), case["id"]


def test_a_size_that_is_no_template_has_no_place() -> None:
    templates = {"huawei-Ascend-310P": {"vir01": _npu(*SIZES["vir01"])}}
    assert place(templates, "huawei-Ascend-310P", _npu(1, 1, 12, 4), [_npu(8, 7, 100, 24)]) is None
