"""The learned table: everything that the policy `koordra` knows of a workload, in whole numbers.

`holes[r]`     thousandths of a milli-GPU that a GPU with 10 * r milli free will keep empty, r from 0 to 100
`cores`        milli-cores per GPU that classes ask for, with the class's part of the GPU demand in millionths
`memory`       the same for MiB per GPU
`nics`         percent of a NIC per GPU, the same, for classes that want a NIC beside the GPU
`blocks`       classes of several GPUs: number, milli-cores, models and part of the pods in millionths
`reserved`     per model, thousandths of its GPUs that pods will ask for that may run nowhere else
`slices`       sets of profiles of cut cards that are asked for, with their size and their part of the slices
               in millionths
`pods`         how many pods it was learned from

It is written as a plain document (`to_document`), so that a controller can keep it and a person can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import WHOLE

STEP: Final = 10
STEPS: Final = WHOLE // STEP
MILLION: Final = 1_000_000
MOST_PER_GPU: Final = 1 << 36
"""Of cores, memory or NICs; a pod may ask for any number, and products with it have to stay below 2^63."""

MOST_GPUS: Final = 1 << 10
_MOST_PODS: Final = 1 << 62
VERSION: Final = "koordra.io/leftover-table/v1"


class PerGpuDemand(NamedTuple):
    """`per_gpu` of something is asked for with each GPU, by `part` millionths of the GPU demand."""

    per_gpu: int
    part: int


class Block(NamedTuple):
    gpus: int
    cpu: int
    models: tuple[str, ...]
    part: int


class SliceDemand(NamedTuple):
    """Any of the profiles will do; `milli` is what such a slice counts."""

    profiles: tuple[str, ...]
    milli: int
    part: int


@dataclass(frozen=True)
class LearnedTable:
    """What was learned; the default is assumed before anything was: no hole is lost, nothing is short."""

    holes: tuple[int, ...] = (0,) * (STEPS + 1)
    cores: tuple[PerGpuDemand, ...] = ()
    memory: tuple[PerGpuDemand, ...] = ()
    nics: tuple[PerGpuDemand, ...] = ()
    blocks: tuple[Block, ...] = ()
    reserved: Mapping[str, int] = field(default_factory=dict)
    pods: int = 0
    slices: tuple[SliceDemand, ...] = ()

    @cached_property
    def hole(self) -> npt.NDArray[np.int64]:
        """Expected hole, in thousandths of a milli-GPU, by free milli: straight lines between the steps."""
        free = np.arange(WHOLE + 1, dtype=np.int64)
        known = np.array([*self.holes, self.holes[-1]], dtype=np.int64)
        below, rest = free // STEP, free % STEP
        found: npt.NDArray[np.int64] = (known[below] * (STEP - rest) + known[below + 1] * rest) // STEP
        return found

    def to_document(self) -> dict[str, Any]:
        return {"apiVersion": VERSION, **{one.name: getattr(self, one.name) for one in fields(self)}}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LearnedTable:
        """Raises InvalidManifest for a document that is not such a table."""
        if document.get("apiVersion") != VERSION:
            raise InvalidManifest(
                f"is {document.get('apiVersion')!r}",
                object="table",
                field="apiVersion",
                remedy=f"want {VERSION}",
            )
        try:
            found = cls(
                holes=tuple(map(int, document["holes"])),
                cores=_read(document["cores"], PerGpuDemand, MOST_PER_GPU, MILLION),
                memory=_read(document["memory"], PerGpuDemand, MOST_PER_GPU, MILLION),
                nics=_read(document["nics"], PerGpuDemand, MOST_PER_GPU, MILLION),
                blocks=_read(document["blocks"], Block, MOST_GPUS, MOST_PER_GPU, None, MILLION),
                reserved={str(model): amount(part, WHOLE) for model, part in document["reserved"].items()},
                pods=amount(document["pods"], _MOST_PODS),
                slices=_read(document["slices"], SliceDemand, None, WHOLE, MILLION),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InvalidManifest(
                f"cannot be read: {error!r}", object="table", remedy="learn it anew"
            ) from error
        if len(found.holes) != STEPS + 1 or not all(
            0 <= value <= STEP * 1000 * step for step, value in enumerate(found.holes)
        ):
            raise InvalidManifest(
                "are not 101 amounts, none larger than what is free", object="table", field="holes"
            )
        return found


_Entry = TypeVar("_Entry")


def _read(entries: Any, make: Callable[..., _Entry], *most: int | None) -> tuple[_Entry, ...]:
    """Entries of amounts, each with the most that there can be, and (None) of names."""
    return tuple(
        make(
            *[
                tuple(map(str, value)) if limit is None else amount(value, limit)
                for value, limit in zip(entry, most, strict=True)
            ]
        )
        for entry in entries
    )


def amount(value: Any, most: int) -> int:
    """Raises ValueError or OverflowError for what is no number from 0 to the most that there can be."""
    found = int(value)
    if not 0 <= found <= most:
        raise ValueError(f"{found} is not from 0 to {most}")
    return found
