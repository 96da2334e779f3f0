"""What NVML says of a card's health: what it needs to recover, its memory's errors, its links, its fabric.

A **fault** keeps new claims off the card (a taint, ``publish.devices``) until it is over:

    NeedsReset, NeedsDrainAndReset, NeedsBusReset, NeedsReboot,
    NeedsP2PDrain, NeedsIMEXRecovery       the driver's recovery action (since R560; the resets since R550)
    RowRemapPending, PagesPending          rows or pages with errors are taken out of use by the next reset
    RowRemapFailed                         the card has no spare row left: have it replaced
    FabricNotReady                         fabricmanager has not joined the card to its NVSwitches yet; CUDA
                                           answers 802 (system not ready) until it has
    FabricFailed                           it has, and the driver could not
    FabricUnhealthy, FabricDegraded        a route is broken or times out; the bandwidth is reduced

Counters of errors are facts to look at, and no fault by themselves: a corrected error is corrected, and what
an uncorrected one leaves behind is among the above.

Sources: nvml.h (nvmlDeviceGpuRecoveryAction_t, nvmlGpuFabricInfo_v2_t, NVML_FI_DEV_*); NVIDIA, "GPU Memory
Error Management" (row remapping), "GPU Debug Guidelines".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.kubelet_plugin.discovery.nvml_query import NvmlQuery

RECOVERY: Final = {
    1: "NeedsReset",
    2: "NeedsReboot",
    3: "NeedsP2PDrain",
    4: "NeedsDrainAndReset",
    5: "NeedsIMEXRecovery",
    6: "NeedsBusReset",
    7: "NeedsReboot",
}
_REMEDIES: Final = {
    "NeedsReset": "drain the card, then reset it (nvidia-smi -r)",
    "NeedsReboot": "drain the node, then reboot it",
    "NeedsP2PDrain": "end the programs that use peer access to this card",
    "NeedsDrainAndReset": "let the programs on the card end, then reset it (nvidia-smi -r)",
    "NeedsIMEXRecovery": "restart the IMEX domain of this node",
    "NeedsBusReset": "drain the card, then reset its PCI bus, or reboot the node",
    "RowRemapPending": "drain the card, then reset it (nvidia-smi -r)",
    "PagesPending": "drain the card, then reset it (nvidia-smi -r)",
    "RowRemapFailed": "have the card replaced",
    "FabricNotReady": "start nvidia-fabricmanager of the driver's version, and look into its log",
    "FabricFailed": "look into the log of nvidia-fabricmanager",
    "FabricUnhealthy": "look into the log of nvidia-fabricmanager, and at the NVLink cables",
    "FabricDegraded": "look into the log of nvidia-fabricmanager, and at the NVLink cables",
}

# Fields of nvmlDeviceGetFieldValues. Older bindings and drivers lack some: each has a result of its own.
_RECOVERY_ACTION, _RESET, _DRAIN_AND_RESET = 230, 226, 227
_PAGES_PENDING, _ROWS_PENDING, _ROWS_FAILED = 31, 144, 145
COUNTERS: Final = {
    3: "ecc_corrected",
    4: "ecc_uncorrected",
    142: "rows_remapped_corrected",
    143: "rows_remapped_uncorrected",
    38: "nvlink_crc_flit",
    45: "nvlink_crc_data",
    52: "nvlink_replay",
    59: "nvlink_recovery",
}
"""Errors since the driver was loaded; of rows, since the card was made."""

_NOT_STARTED, _IN_PROGRESS, _COMPLETED = 1, 2, 3
# Two bits each in the health mask: 1 is true, 2 is false, 0 is unknown.
_DEGRADED_BANDWIDTH, _ROUTE_UNHEALTHY, _ACCESS_TIMEOUT = 0, 4, 6
_TRUE = 1


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """``recovered``: the driver says that the card needs no recovery; None where it does not say."""

    recovered: bool | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


def health(card: NvmlQuery) -> GpuHealth:
    """The card's counters; its faults are added to those of the query, each with its remedy."""
    values = _field_values(
        card,
        [_RECOVERY_ACTION, _RESET, _DRAIN_AND_RESET, _PAGES_PENDING, _ROWS_PENDING, _ROWS_FAILED, *COUNTERS],
    )
    action = values.get(_RECOVERY_ACTION)
    if action is None and _RESET in values:  # before R560 the driver says whether it asks for either reset
        action = 1 if values[_RESET] else 4 if values.get(_DRAIN_AND_RESET) else 0
    if action:
        add_fault(card, RECOVERY.get(action, "NeedsReset"), f"the driver asks for recovery action {action}")
    for number, fault in (
        (_ROWS_FAILED, "RowRemapFailed"),
        (_ROWS_PENDING, "RowRemapPending"),
        (_PAGES_PENDING, "PagesPending"),
    ):
        if values.get(number):
            add_fault(card, fault, "NVML reports it")
    return GpuHealth(
        recovered=None if action is None else action == 0,
        errors={name: values[number] for number, name in COUNTERS.items() if number in values},
    )


def judge_fabric(card: NvmlQuery, info: Any) -> None:
    """The faults that the card's fabric state shows."""
    if info.state in (_NOT_STARTED, _IN_PROGRESS):
        add_fault(card, "FabricNotReady", "the card has not joined its NVSwitch fabric")
    if info.state != _COMPLETED:
        return
    if info.status != card.nvml.NVML_SUCCESS:
        add_fault(card, "FabricFailed", f"joining its NVSwitch fabric ended with NVML error {info.status}")
    if _says(info, _ROUTE_UNHEALTHY) or _says(info, _ACCESS_TIMEOUT):
        add_fault(card, "FabricUnhealthy", f"the fabric's health mask is {info.healthMask:#x}")
    elif _says(info, _DEGRADED_BANDWIDTH):
        add_fault(card, "FabricDegraded", f"the fabric's health mask is {info.healthMask:#x}")


def _says(info: Any, shift: int) -> bool:
    return bool((info.healthMask >> shift) & 0b11 == _TRUE)


def add_fault(card: NvmlQuery, fault: str, why: str) -> None:
    card.faults.add(fault)
    card.problem("health", f"{fault}: {why}", _REMEDIES[fault])


def _field_values(card: NvmlQuery, fields: list[int]) -> dict[int, int]:
    """The fields that the card has, by number."""
    found = card.ask("health", "nvmlDeviceGetFieldValues", fields) or ()
    return {
        value.fieldId: _number(value)
        for value in found
        if value.nvmlReturn == card.nvml.NVML_SUCCESS and value.fieldId in fields
    }


def _number(value: Any) -> int:
    """nvmlValueType_t: 0 double, 1 unsigned, 2 unsigned long, 3 unsigned long long, 4 long long, 5 int."""
    read = {
        0: value.value.dVal,
        1: value.value.uiVal,
        2: value.value.ulVal,
        3: value.value.ullVal,
        4: value.value.sllVal,
    }
    return int(read.get(value.valueType, value.value.uiVal))
