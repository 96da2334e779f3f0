"""Makes and removes one MIG instance of a card, as a transaction that survives a crash between any two calls.

    write down the place ─> GPU instance ─> write down its id ─> compute instance that covers it
        ─> write down its id and UUID

What is written down (`Journal`) is on the disk before the next step is taken, so that whoever comes after a
crash knows what may be koordra's: the instance of that profile at that very place, and no other. A GPU
instance without a compute instance takes its slices and has no MIG device, so that what is there is asked for
by profile (nvmlDeviceGetGpuInstances), never through MIG devices. Ids are given out again, so that an
instance is known by profile and place, and by the UUID once it has one.

No answer of NVML is believed by itself: a call that failed may have done its work (a time-out), and
"insufficient resources" is also said where the very instance exists. After every failure the card is read
again, and what is there decides. What was made and cannot be finished is removed, and that is looked at too.

Source of the return codes: nvml.h (nvmlDeviceCreateGpuInstanceWithPlacement, nvmlGpuInstanceDestroy and their
kin), and what other drivers ran into.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.errors import PrepareError
from koordra.kubelet_plugin.discovery.nvml_query import text
from koordra.kubelet_plugin.isolation.mig.journal import Journal, Place
from koordra.logs import get_logger

log = get_logger(__name__)
_MOST_INSTANCES: Final = 32
_MOST_PARTS: Final = 16


class InstanceInUse(PrepareError):
    """A process is alive on the instance, or a profiler holds the card."""


@dataclass(frozen=True, slots=True)
class _Part:
    handle: Any
    id: int
    multiprocessors: int
    uuid: str


@dataclass(frozen=True, slots=True)
class _Whole:
    handle: Any
    id: int
    profile: int
    start: int
    size: int


class InstancesOfCard:
    """The instances of one card, in one session of NVML (`nvml`, a module with pynvml's functions). Raises
    PrepareError, whose text names the call and the code."""

    def __init__(self, nvml: Any, card: str) -> None:
        self._nvml, self._uuid = nvml, card
        self._card = self._call("nvmlDeviceGetHandleByUUID", card, quiet=(nvml.NVML_ERROR_NOT_FOUND,))
        self._lacking = (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED)
        self._profiles: dict[int, Any] = {}
        self._of_parts: dict[int, list[Any]] = {}

    @property
    def is_there(self) -> bool:
        """Whether the node has the card at all now; with it its instances went."""
        return self._card is not None

    def make(self, journal: Journal, keep: Callable[[Journal], None]) -> Journal:
        """The instance, with what is known of it now. `journal` is what was written down before, at least the
        place; that it is on the disk is the caller's care."""
        self.require_mig_mode()
        whole = self._at(journal.place)
        if whole is None:
            if journal.uuid:
                # It was whole once: somebody removed it, or the card was reset.
                journal = Journal(journal.place, boot=journal.boot)
                keep(journal)
            whole = self._make_whole(journal.place)
        journal = replace(journal, gpu_instance=whole.id)
        keep(journal)
        try:
            part = self._covering(whole, journal)
        except PrepareError as error:
            self._roll_back(journal, error)
            raise
        journal = replace(journal, compute_instance=part.id, uuid=part.uuid)
        keep(journal)
        return journal

    def existing(self, place: Place) -> Journal | None:
        """The whole instance of that place, whoever made it; None where there is none. Raises PrepareError
        for one that is half made, or cut into several."""
        whole = self._at(place)
        if whole is None:
            return None
        parts = self._parts(whole)
        if len(parts) != 1 or parts[0].multiprocessors != self._of_profile(whole.profile):
            raise PrepareError(
                f"AlreadyAllocated: {place} is a GPU instance with {len(parts)} compute instances that koordra did not make; "
                "it is left as it is: remove it (nvidia-smi mig -dci, -dgi), or give it one that covers it"
            )
        return Journal(place, whole.id, parts[0].id, parts[0].uuid, given=True)

    def in_the_way(self, place: Place) -> tuple[Place, ...]:
        """What takes slices of that place."""
        return tuple(
            Place(self._uuid, each.profile, each.start, each.size)
            for each in self._wholes()
            if each.start < place.start + place.size and place.start < each.start + each.size
        )

    def remove(self, journal: Journal) -> None:
        """Have it gone, whole or half; success where it is not there. Raises InstanceInUse, PrepareError."""
        if journal.given or not self.is_there or not self._mig_mode():
            return
        whole = self._at(journal.place)
        if whole is None:
            return
        parts = self._parts(whole)
        if journal.uuid and parts and journal.uuid not in {part.uuid for part in parts}:
            log.warning("mig_instance_is_anothers", place=str(journal.place), uuid=parts[0].uuid)
            return
        for part in parts:
            self._destroy("nvmlComputeInstanceDestroy", part.handle, journal.place)
        left = self._at(journal.place)
        if left is not None and self._parts(left):
            raise PrepareError(f"{journal.place}: its compute instance is still there")
        if left is not None:
            self._destroy("nvmlGpuInstanceDestroy", left.handle, journal.place)
        if self._at(journal.place) is not None:
            raise PrepareError(f"{journal.place}: its GPU instance is still there")

    # --- steps ----------------------------------------------------------------------------------------------

    def _make_whole(self, place: Place) -> _Whole:
        where = self._nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        failed: PrepareError | None = None
        try:
            self._call(
                "nvmlDeviceCreateGpuInstanceWithPlacement", self._card, place.profile, ctypes.byref(where)
            )
        except PrepareError as error:
            failed = error
        made = self._at(place)
        if made is None:
            others = ", ".join(str(one) for one in self.in_the_way(place))
            why = f"; in its way: {others}" if others else ""
            raise PrepareError(f"PartitionMismatch: {place} cannot be made: {failed}{why}")
        return made

    def _covering(self, whole: _Whole, journal: Journal) -> _Part:
        """The one compute instance with all multiprocessors; others on an instance of ours were never
        finished."""
        every = self._of_profile(whole.profile)
        parts = self._parts(whole)
        if journal.uuid and parts and journal.uuid not in {part.uuid for part in parts}:
            raise PrepareError(
                f"AlreadyAllocated: {journal.place} is {parts[0].uuid} now, which koordra did not make"
            )
        if len(parts) == 1 and parts[0].multiprocessors == every:
            return parts[0]
        for part in parts:
            self._destroy("nvmlComputeInstanceDestroy", part.handle, journal.place)
        failed: PrepareError | None = None
        try:
            self._call(
                "nvmlGpuInstanceCreateComputeInstance", whole.handle, self._covering_profile(whole, every)
            )
        except PrepareError as error:
            failed = error
        parts = self._parts(whole)
        if len(parts) != 1 or parts[0].multiprocessors != every:
            raise PrepareError(
                f"PartitionMismatch: {journal.place} got {len(parts)} compute instances in place of one that covers it: {failed}"
            )
        return parts[0]

    def _roll_back(self, journal: Journal, why: PrepareError) -> None:
        try:
            self.remove(journal)
        except PrepareError as error:
            log.error("mig_instance_left", place=str(journal.place), because=str(why), error=str(error))

    def _destroy(self, call: str, handle: Any, place: Place) -> None:
        """Whether it is gone is for the caller to see; only "in use" is an answer that is believed."""
        try:
            getattr(self._nvml, call)(handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_IN_USE:
                raise InstanceInUse(
                    f"{place} is still used: {call} answers {error}; it is tried again until its processes have ended"
                ) from error
            log.warning("mig_instance_not_destroyed", place=str(place), call=call, error=str(error))

    # --- what is there --------------------------------------------------------------------------------------

    def _mig_mode(self) -> bool:
        current, _ = self._call("nvmlDeviceGetMigMode", self._card)
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def require_mig_mode(self) -> None:
        """Raises PrepareError where no instance can be made on the card now."""
        if not self.is_there:
            raise PrepareError(f"DeviceUnhealthy: {self._uuid} is gone from this node")
        current, pending = self._call("nvmlDeviceGetMigMode", self._card)
        if current != self._nvml.NVML_DEVICE_MIG_ENABLE or pending != current:
            state = "is off" if current == pending else "waits for a reset"
            raise PrepareError(
                f"PartitionMismatch: the MIG mode of {self._uuid} {state}; Prepare never changes it"
            )

    def _at(self, place: Place) -> _Whole | None:
        return next(
            (
                one
                for one in self._wholes(place.profile)
                if (one.profile, one.start, one.size) == (place.profile, place.start, place.size)
            ),
            None,
        )

    def _wholes(self, profile: int | None = None) -> Iterator[_Whole]:
        known = self._known_profiles()
        for number in known if profile is None else known.keys() & {profile}:
            room = (self._nvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
            count = ctypes.c_uint(len(room))
            self._call("nvmlDeviceGetGpuInstances", self._card, number, room, ctypes.byref(count))
            for handle in room[: count.value]:
                info = self._call("nvmlGpuInstanceGetInfo", handle)
                yield _Whole(handle, info.id, info.profileId, info.placement.start, info.placement.size)

    def _known_profiles(self) -> dict[int, Any]:
        """The card's profiles by NVML's id: all, or an error. Those that the product lacks are no fault."""
        if not self._profiles:
            call, count = "nvmlDeviceGetGpuInstanceProfileInfo", self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT
            found = [self._call(call, self._card, number, quiet=self._lacking) for number in range(count)]
            self._profiles = {info.id: info for info in found if info is not None}
        return self._profiles

    def _of_profile(self, profile: int) -> int:
        return int(self._known_profiles()[profile].multiprocessorCount)

    def _part_profiles(self, whole: _Whole) -> list[Any]:
        """Those that compute instances of such a GPU instance may have."""
        if whole.profile not in self._of_parts:
            self._of_parts[whole.profile] = list(self._read_part_profiles(whole))
        return self._of_parts[whole.profile]

    def _read_part_profiles(self, whole: _Whole) -> Iterator[Any]:
        nvml = self._nvml
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._call(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                whole.handle,
                number,
                nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                quiet=self._lacking,
            )
            if info is not None:
                yield info

    def _covering_profile(self, whole: _Whole, every: int) -> int:
        """Of a slice with twice the memory the usual profile of one slice leaves multiprocessors unused."""
        for info in self._part_profiles(whole):
            if info.multiprocessorCount == every:
                return int(info.id)
        raise PrepareError(
            f"PartitionMismatch: no compute instance has all {every} multiprocessors of profile {whole.profile}"
        )

    def _parts(self, whole: _Whole) -> list[_Part]:
        found = []
        for info in self._part_profiles(whole):
            room = (self._nvml.c_nvmlComputeInstance_t * _MOST_PARTS)()
            count = ctypes.c_uint(len(room))
            self._call("nvmlGpuInstanceGetComputeInstances", whole.handle, info.id, room, ctypes.byref(count))
            for handle in room[: count.value]:
                about = self._call("nvmlComputeInstanceGetInfo", handle)
                uuid = text(self._call("nvmlDeviceGetUUID", about.device)) or ""
                found.append(_Part(handle, about.id, info.multiprocessorCount, uuid))
        return found

    def _call(self, call: str, *arguments: Any, quiet: tuple[int, ...] = ()) -> Any:
        try:
            return getattr(self._nvml, call)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in quiet:
                return None
            raise PrepareError(f"{call} of {self._uuid} answers {error}") from error
