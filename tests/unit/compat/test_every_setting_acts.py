"""No setting of the operator's is a word without effect: of each, a pod that becomes something else with it,
or is told something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordra.compat.keys import Place, Treatment, of_peer
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.errors import InvalidManifest
from tests.unit.compat.pods import Dict, asking, converted

N, V, E, A, K = "nvidia.com/", "volcano.sh/", "elasticgpu.io/", "aliyun.com/", "koordinator.sh/"
SHARE = asking({N + "gpu": 1, N + "gpumem": 1000, N + "gpucores": 30})
MIG = asking({N + "gpu": 1, N + "gpumem": 1000}, annotations={N + "vgpu-mode": "mig"})
ROUNDED = {"models": ["A100"], "profiles": ["1g.5gb"]}
GEOMETRIES = {"models": ["A100"], "allowedGeometries": [[{"name": "1g.5gb", "memory": 5120, "count": 7}]]}
OWN: Mapping[str, tuple[Any, Dict]] = {
    "defaultDialect": ("hami", asking({N + "gpu": 1})),
    "names": ({A + "gpu-mem": "corp.example/mem"}, asking({A + "gpu-mem": 3})),
    "isolation": ({"aliyun": "mps"}, asking({A + "gpu-mem": 3})),
    "schedulers": (["corp-scheduler"], asking({A + "gpu-mem": 3}, schedulerName="corp-scheduler")),
    "runtimeClasses": (["corp"], asking({A + "gpu-mem": 3}, runtimeClassName="corp")),
    "nics": ({"corp.example/vf": {"kind": "VF"}}, asking({N + "gpu": 1, "corp.example/vf": 1})),
    "aliyun": ({"memoryUnit": "MiB"}, asking({A + "gpu-mem": 3})),
    "volcanoGpu": ({"gpuMemoryFactor": 10}, asking({V + "gpu-memory": 100})),
    "elastic": ({"memoryUnit": "GiB"}, asking({E + "gpu-memory": 4, E + "gpu-core": 20})),
    "plain": ({"replicas": 4}, asking({N + "gpu.shared": 1})),
    "hami": ({"memoryFactor": 10}, SHARE),
    "volcano": ({"gpuMemoryFactor": 10}, asking({V + "vgpu-number": 1, V + "vgpu-memory": 100})),
}
"""koordra's own form, field by field."""
VF = {"corp.example/vf": {"kind": "Share", "share": 10}}
IN_SECTIONS: Mapping[str, tuple[Any, Any, Dict]] = {
    "elastic.tflopsPrecision": ({"elastic": {}}, {"elastic": {"tflopsPrecision": "FP16"}}, asking({E + "gpu-memory": 4, E + "gpu-tflops": 20})),
    "nics.share": ({"nics": VF}, {"nics": {"corp.example/vf": {"kind": "Share", "share": 20}}}, OWN["nics"][1]),
    "nics.interfaces": ({"nics": VF}, {"nics": {"corp.example/vf": {"kind": "Share", "share": 10, "interfaces": ["ens1"]}}}, OWN["nics"][1]),
    "nics.required": ({"nics": VF}, {"nics": {"corp.example/vf": {"kind": "Share", "share": 10, "required": True}}}, OWN["nics"][1]),
}  # fmt: skip
DEVICE_CONFIG: Mapping[str, tuple[Any, Dict]] = {
    "resourceCountName": ("corp.example/gpu", SHARE),
    "resourceMemoryName": ("corp.example/mem", SHARE),
    "resourceMemoryPercentageName": ("corp.example/p", asking({N + "gpu": 1, N + "gpumem-percentage": 30})),
    "resourceCoreName": ("corp.example/cores", SHARE),
    "resourcePriorityName": (
        "corp.example/priority",
        asking({N + "gpu": 1, N + "gpumem": 10, N + "priority": 1}),
    ),
    "memoryFactor": (10, SHARE),
    "defaultMemory": (5000, asking({N + "gpu": 1, N + "gpucores": 30})),
    "defaultMem": (5000, asking({N + "gpu": 1, N + "gpucores": 30})),
    "defaultCores": (20, asking({N + "gpu": 1, N + "gpumem": 1000})),
    "defaultGPUNum": (2, asking({N + "gpumem": 1000})),
    "gpuCorePolicy": ("force", SHARE),
    "deviceMemoryScaling": (2, SHARE),
    "deviceCoreScaling": (2, SHARE),
    "migProfileAllowlist": ([ROUNDED], MIG),
    "knownMigGeometries": ([GEOMETRIES], MIG),
}
"""HAMi's."""
DONE_ANYHOW = {"overwriteEnv"}
"""What koordra's hook does to every container, whatever a file says."""


def outcome(document: Any, manifest: Dict) -> object:
    found = converted(manifest, settings=with_document(Settings(), document, source="settings.yaml"))
    return found.objects, [str(note) for note in (*found.notes, *found.refused)]


@pytest.mark.parametrize("name", OWN)
def test_a_setting_changes_what_becomes_of_a_pod(name: str) -> None:
    value, manifest = OWN[name]
    assert outcome({name: value}, manifest) != outcome({}, manifest)


@pytest.mark.parametrize("name", IN_SECTIONS)
def test_a_field_of_a_section_does_too(name: str) -> None:
    one, other, manifest = IN_SECTIONS[name]
    assert outcome(one, manifest) != outcome(other, manifest)


@pytest.mark.parametrize("name", DEVICE_CONFIG)
def test_a_field_of_device_config_does_too(name: str) -> None:
    value, manifest = DEVICE_CONFIG[name]
    plain = {"nvidia": {"resourceCountName": N + "gpu"}}
    assert outcome({"nvidia": {**plain["nvidia"], name: value}}, manifest) != outcome(plain, manifest)


def test_every_setting_is_tried() -> None:
    with pytest.raises(InvalidManifest) as caught:
        with_document(Settings(), {"nonsense": 1}, source="x")
    assert set(str(caught.value).partition("fields are ")[2].split(", ")) == OWN.keys()
    read = {key.name for key in of_peer("hami", Place.SETTING) if key.treatment is Treatment.TRANSLATED}
    assert read - DONE_ANYHOW == DEVICE_CONFIG.keys()
