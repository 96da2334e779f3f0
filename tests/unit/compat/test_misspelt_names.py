"""Names that look like a dialect's: a slip of the pen is told, with the name that may have been meant."""

from __future__ import annotations

import pytest

from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from tests.unit.compat.pods import Dict, asking, converted, warnings, words
from tests.unit.compat.rows import K, N

RESOURCES = [
    (asking({N + "gpu": 1, N + "gpumem": 10, N + "gpucore": 30}), N + "gpucore", N + "gpucores"),
    (asking({N + "gpucore": 30}), N + "gpucore", N + "gpucores"),
    (asking({K + "gpu-shared": 2, K + "gpu-memory-ratio": 100}), K + "gpu-shared", K + "gpu.shared"),
    (asking({"alnair/vgpu-mem": 4}), "alnair/vgpu-mem", "alnair/vgpu-memory"),
]


@pytest.mark.parametrize(("manifest", "written", "meant"), RESOURCES)
def test_a_resource_that_nobody_has_is_told_and_stays(manifest: Dict, written: str, meant: str) -> None:
    (told,) = warnings(manifest)
    assert f"[{written}]: is no name that koordra reads, and stays" in told
    assert told.endswith(f"did you mean {meant}?")
    after = converted(manifest).objects[0]
    assert written in after["spec"]["containers"][0]["resources"]["limits"]


def test_a_name_without_a_likeness_is_told_too() -> None:
    (told,) = warnings(asking({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-priority": 1}))
    assert "[volcano.sh/vgpu-priority]: is no name that koordra reads" in told


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (N + "use-gputpye", N + "use-gputype"),
        ("hami.io/gpu-scheduler-polcy", "hami.io/gpu-scheduler-policy"),
    ],
)
def test_an_annotation_that_nobody_reads_is_told(written: str, meant: str) -> None:
    (told,) = warnings(asking({N + "gpumem": 10}, annotations={written: "A100"}))
    assert f"[{written}]: is no name that koordra reads" in told
    assert told.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("annotation", ["gang.scheduling.koordinator.sh/name", "example.com/nvidia.com"])
def test_annotations_about_something_else_are_not(annotation: str) -> None:
    assert not warnings(asking({K + "gpu": 50}, annotations={annotation: "x"}))


def test_other_device_plugins_are_left_alone() -> None:
    assert not warnings(asking({N + "gpu": 1, "nvidia.com/hostdev": 1}))


def test_with_hamis_cards_renamed_the_old_name_is_still_the_device_plugins() -> None:
    section = {"resourceCountName": "corp.example/vgpu", "resourceMemoryName": "corp.example/mem"}
    settings = with_document(Settings(), {"nvidia": section}, source="device-config.yaml")
    assert words(asking({N + "gpu": 2}), settings=settings) == ["a: 2 gpu"]
    assert words(asking({"corp.example/vgpu": 2}), settings=settings) == ["a: 2 gpu cores 100"]
