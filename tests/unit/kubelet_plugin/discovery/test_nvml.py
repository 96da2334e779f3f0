"""The NVML adapter against a library that fails call by call."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from koordra.kubelet_plugin.discovery.gpu_health import COUNTERS
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.discovery.nvml_query import normal_bus_id
from koordra.kubelet_plugin.nvidia_driver import nvml_session
from koordra.topology.machine import NvLink
from koordra.topology.partitions import FabricInfo

CLUSTER = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
UUID = "GPU-aee8e38b-2c70-5fa2-b99d-55622a9b403a"
SWITCH, PEER = "00000000:1A:00.0", "00000000:2D:00.0"

CALLS = {
    "nvmlDeviceGetHandleByIndex": None,
    "nvmlDeviceGetPciInfo": None,
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetNumGpuCores": "multiprocessors",
    "nvmlDeviceGetMigMode": "mig_enabled",
}
"""Call -> the fact that is lost when it fails; None where the whole GPU is."""


def link_state(_: Any, link: int) -> int:
    if link > 4:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 0 if link == 4 else 1


def unsupported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlSystemGetDriverVersion": lambda: b"550.54.15",
    "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:0F:00.0"),
    "nvmlDeviceGetUUID": lambda _: UUID,
    "nvmlDeviceGetMinorNumber": lambda _: 3,
    "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetMemoryInfo": lambda *_: SimpleNamespace(total=85899345920, reserved=378535936),
    "nvmlDeviceGetArchitecture": lambda _: 9,
    "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
    "nvmlDeviceGetNumGpuCores": lambda _: 132 * 128,
    "nvmlDeviceGetMigMode": lambda _: [0, 0],
    "nvmlDeviceGetFieldValues": unsupported,
    "nvmlDeviceGetGpuInstanceProfileInfo": unsupported,
    "nvmlDeviceGetGpuFabricInfoV": unsupported,
    "nvmlDeviceGetNvLinkState": link_state,
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda _, link: 0 if link == 3 else 2,
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda _, link: SimpleNamespace(busId=PEER if link == 3 else SWITCH),
}
"""One GPU with three links to a switch, one to a peer and one that is down."""


class Library:
    """pynvml as far as it is used; any call can be made to fail with a code."""

    def __init__(self) -> None:
        self.answers = dict(ANSWERS)
        self.answers |= {"nvmlInit": lambda: self.count(1), "nvmlShutdown": lambda: self.count(-1)}
        self.failing: dict[str, int] = {}
        self.open = 0
        self.nvmlLib = None
        self._nvmlGetFunctionPointer_cache: dict[str, Any] = {}

    def count(self, step: int) -> None:
        self.open += step

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or isinstance(getattr(pynvml, name), int):
            return getattr(pynvml, name)

        def call(*arguments: Any) -> Any:
            if name in self.failing:
                raise pynvml.NVMLError(self.failing[name])
            return self.answers[name](*arguments)

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(nvml_session, "pynvml", made)
    return made


def test_everything_is_read_and_the_library_closed(library: Library) -> None:
    facts = nvml_facts()
    assert (facts.driver_version, facts.cuda_version, facts.problems) == ("550.54.15", 12040, ())
    (gpu,) = facts.gpus
    assert (gpu.location.bus_id, gpu.uuid, gpu.minor) == ("0000:0f:00.0", UUID, 3)
    assert (gpu.memory_bytes, gpu.architecture, gpu.compute_capability) == (85520809984, "Hopper", "9.0")
    assert (gpu.mig_enabled, gpu.multiprocessors) == (False, 132)
    assert gpu.nvlinks == (
        NvLink("0000:1a:00.0", 3, to_switch=True),
        NvLink("0000:2d:00.0", 1, to_switch=False),
    )
    assert library.open == 0


@pytest.mark.parametrize(
    ("total", "reserved", "expected"),
    [(85899345920, 378535936, 85520809984), (85899345920, 0, 85899345920), (0, 0, None), (100, 200, None)],
)
def test_memory_offered_is_what_programs_can_have(
    library: Library, total: int, reserved: int, expected: int | None
) -> None:
    library.answers["nvmlDeviceGetMemoryInfo"] = lambda *_: SimpleNamespace(total=total, reserved=reserved)
    assert nvml_facts().gpus[0].memory_bytes == expected


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_driver_before_r510_tells_the_total_alone(library: Library, error: int) -> None:
    def memory(_: Any, *version: int) -> Any:
        if version:
            raise pynvml.NVMLError(error)
        return SimpleNamespace(total=85899345920)

    library.answers["nvmlDeviceGetMemoryInfo"] = memory
    facts = nvml_facts()
    assert (facts.gpus[0].memory_bytes, facts.problems) == (85899345920, ())


def field(number: int, value: int, kind: int = 1, answer: int = 0) -> Any:
    """As nvmlDeviceGetFieldValues gives it."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")
    values = dict.fromkeys(names, 12345) | {names[kind]: value}
    return SimpleNamespace(fieldId=number, nvmlReturn=answer, valueType=kind, value=SimpleNamespace(**values))


@pytest.mark.parametrize(
    ("values", "faults", "recovered"),
    [
        ([field(230, 0)], (), True),
        ([field(230, 1)], ("NeedsReset",), False),
        ([field(230, 2)], ("NeedsReboot",), False),
        ([field(230, 3)], ("NeedsP2PDrain",), False),
        ([field(230, 4)], ("NeedsDrainAndReset",), False),
        ([field(230, 5)], ("NeedsIMEXRecovery",), False),
        ([field(230, 6)], ("NeedsBusReset",), False),
        ([field(230, 7)], ("NeedsReboot",), False),
        ([field(230, 99)], ("NeedsReset",), False),  # of a newer driver
        ([field(230, 1, answer=pynvml.NVML_ERROR_NOT_SUPPORTED)], (), None),
        ([field(226, 0), field(227, 0, answer=pynvml.NVML_ERROR_NOT_SUPPORTED)], (), True),
        ([field(226, 1), field(227, 0)], ("NeedsReset",), False),
        ([field(226, 0), field(227, 1)], ("NeedsDrainAndReset",), False),
        ([field(226, 1), field(227, 1), field(230, 0)], (), True),  # which is the driver's last word
        ([field(144, 1), field(145, 0)], ("RowRemapPending",), None),
        ([field(144, 0), field(145, 1)], ("RowRemapFailed",), None),
        ([field(31, 1, kind=3)], ("PagesPending",), None),
    ],
)
def test_what_the_driver_asks_for_is_a_fault(
    library: Library, values: list[Any], faults: tuple[str, ...], recovered: bool | None
) -> None:
    library.answers["nvmlDeviceGetFieldValues"] = lambda *_: values
    (gpu,) = nvml_facts().gpus
    assert (gpu.faults, gpu.recovered) == (faults, recovered)


def test_counters_are_the_fields_that_nvml_calls_so() -> None:
    assert COUNTERS == {
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "ecc_corrected",
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "ecc_uncorrected",
        pynvml.NVML_FI_DEV_REMAPPED_COR: "rows_remapped_corrected",
        pynvml.NVML_FI_DEV_REMAPPED_UNC: "rows_remapped_uncorrected",
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "nvlink_crc_flit",
        pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: "nvlink_crc_data",
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "nvlink_replay",
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "nvlink_recovery",
    }


def test_counters_of_errors_are_no_fault_and_may_begin_anew(library: Library) -> None:
    for count in (7, 0):
        counted = [field(4, count, kind=3), field(52, count, kind=2), field(59, 1, answer=3)]
        library.answers["nvmlDeviceGetFieldValues"] = lambda *_, counted=counted: counted
        (gpu,) = nvml_facts().gpus
        assert gpu.errors == {"ecc_uncorrected": count, "nvlink_replay": count}
        assert gpu.faults == ()


@pytest.mark.parametrize(
    ("state", "status", "mask", "faults"),
    [
        (0, 0, 0, ()),
        (1, 0, 0, ("FabricNotReady",)),
        (2, 0, 0, ("FabricNotReady",)),
        (3, 0, 0, ()),
        (3, 0, 0b10_10_00_10, ()),  # each asked and denied
        (3, 999, 0, ("FabricFailed",)),
        (3, 0, 1, ("FabricDegraded",)),
        (3, 0, 1 << 4, ("FabricUnhealthy",)),
        (3, 0, 1 << 6 | 1, ("FabricUnhealthy",)),
        (1, 999, 1, ("FabricNotReady",)),  # the rest counts from state 3 on
    ],
)
def test_a_card_outside_its_fabric_is_faulty(
    library: Library, state: int, status: int, mask: int, faults: tuple[str, ...]
) -> None:
    def info(_: Any, answer: Any) -> int:
        answer._obj.state, answer._obj.status, answer._obj.healthMask = state, status, mask
        answer._obj.clusterUuid, answer._obj.cliqueId = (type(answer._obj.clusterUuid))(*CLUSTER.bytes), 7
        return 0

    library.answers["nvmlDeviceGetGpuFabricInfoV"] = info
    (gpu,) = nvml_facts().gpus
    assert gpu.faults == faults
    joined = state == 3 and status == 0
    assert gpu.fabric == (FabricInfo(str(CLUSTER), 7) if joined else None)


def test_a_fabric_within_one_machine_has_no_cluster(library: Library) -> None:
    def info(_: Any, answer: Any) -> int:
        answer._obj.state, answer._obj.cliqueId = 3, 7
        return 0

    library.answers["nvmlDeviceGetGpuFabricInfoV"] = info
    (gpu,) = nvml_facts().gpus
    assert gpu.fabric is None
    assert not gpu.faults


ERRORS = sorted(
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int) and value
)


@pytest.mark.parametrize("call", CALLS)
def test_every_error_of_every_call_costs_one_fact(library: Library, call: str) -> None:
    lost = CALLS[call]
    assert len(ERRORS) > 20
    for error in ERRORS:
        library.failing = {call: error}
        facts = nvml_facts()
        unsupported = error in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
        assert bool(facts.problems) != unsupported
        assert library.open == 0
        if lost is None:
            assert facts.gpus == ()
        else:
            (gpu,) = facts.gpus
            assert getattr(gpu, lost) is None
            assert gpu.location.bus_id == "0000:0f:00.0"


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND])
def test_a_library_that_does_not_start_is_one_problem(library: Library, error: int) -> None:
    library.failing = {"nvmlInit": error}
    facts = nvml_facts()
    assert facts.gpus == ()
    assert [(problem.object, problem.field) for problem in facts.problems] == [("NVML", "library")]


def test_an_identity_that_is_none_is_not_taken(library: Library) -> None:
    library.answers["nvmlDeviceGetUUID"] = lambda _: "GPU-????????-????-????-????-????????????"
    assert nvml_facts().gpus[0].uuid is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("00000000:1B:00", "0000:1b:00.0"),
        ("00010001:00:00.0", "10001:00:00.0"),
        ("", None),
        ("1B:00.0", None),
    ],
)
def test_bus_ids(written: str, expected: str | None) -> None:
    assert normal_bus_id(written) == expected
