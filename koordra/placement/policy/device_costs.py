"""What a form of request costs on the devices of a state, whatever the cores: computed once per pair and kept.

For every distinct set of devices (a *part*) and every form there is one number

    key = (dH + OFFSET) << KEY_BITS | leftover on the chosen GPU          (OFFSET for dH: does not fit)

of the best GPU of the part, the number of GPUs that stay unused, and for machines of known shape what the joint search adds
(`joint_devices`). Without a shape the answer for a share is the least over the distinct free shares of the node, and these are made
for all forms at once. GPUs of a part without shape are in ascending order of what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from koordra.placement.columns.arrays import Classes, Ints, grown
from koordra.placement.columns.state import WHOLE, Choice, DeviceRequestShape, Devices
from koordra.placement.mig.mig_placement import MigCardValues
from koordra.placement.policy import joint_devices as joint
from koordra.placement.policy.device_value import DeviceSetValue, MachineDevices, machine_devices
from koordra.placement.policy.stranded_capacity import StrandedCapacity
from koordra.placement.policy.workload_table import Table

KEY_BITS: Final = 10
OFFSET: Final = 1 << 26
_NO: Final = 2 * OFFSET << KEY_BITS
_NEVER: Final = 1 << 20
_SPARE_PARTS: Final = 1024
_MOST_JOINTS: Final = 1 << 16


class DeviceCosts:
    """`lone`: what it costs, beside dH, to break into a GPU that nobody uses (thousandths of a milli-GPU).

    `before`: of the same table and classes, whose joint answers are taken over.
    """

    def __init__(
        self, table: Table, classes: Classes, *, lone: int, before: DeviceCosts | None = None
    ) -> None:
        self._hole, self._classes, self._lone = table.hole, classes, lone
        self._holes: list[int] = table.hole.tolist()
        self._nics = StrandedCapacity(table.nics)
        self.cuts: MigCardValues = MigCardValues(table.slices) if before is None else before.cuts
        self._shaped = any(kind.shape is not None for kind in classes.kinds)
        self.joints: dict[tuple[Devices, DeviceRequestShape], joint.Joint | None] = (
            {} if before is None else before.joints
        )
        self._known: dict[Devices, int] = {}
        self._listed: list[Devices] = []
        self._whole: list[int] = []
        self._totals: list[tuple[int, int, int]] = []
        self._made = 0
        self.rest = np.zeros(64, dtype=np.int64)
        self.usable = np.zeros(64, dtype=np.int64)
        self._keys = np.full((64, 16), _NO, dtype=np.int64)
        self._free = np.zeros((64, 16), dtype=np.int64)
        self._extra = np.zeros((64, 16) if self._shaped else (0, 0), dtype=np.int64)
        self._base: dict[int, tuple[Ints, Ints]] = {}
        self._drops: dict[int, Ints] = {}
        self._milli = np.zeros(0, dtype=np.int64)
        self._gpus = np.zeros(0, dtype=np.int64)
        self._width = max([kind.gpus for kind in classes.kinds] + [1])
        self._amounts = np.zeros((64, self._width), dtype=np.int64)
        self._unused = np.zeros(64, dtype=np.int64)
        self._with_shape: set[int] = set()
        self._places: dict[int, MachineDevices] = {}
        self._worth_of: DeviceSetValue | None = None

    def part(self, devices: Devices) -> int:
        """The number of these devices."""
        if self._classes.kinds[devices.kind].shape is None:
            devices = Devices(-1, devices.gpus, devices.nics)
        number = self._known.get(devices)
        if number is not None:
            return number
        self._with_forms()
        number = len(self._listed)
        self._known[devices] = number
        self._listed.append(devices)
        if number == len(self.rest):
            self.rest, self.usable = grown(self.rest, number + 1), grown(self.usable, number + 1)
            self._keys = grown(self._keys, number + 1, fill=_NO)
            self._free = grown(self._free, number + 1)
            self._amounts = grown(self._amounts, number + 1)
            self._unused = grown(self._unused, number + 1)
            if self._shaped:
                self._extra = grown(self._extra, number + 1)
        self._amounts[number, : len(devices.gpus)] = devices.gpus
        if devices.kind >= 0:
            self._with_shape.add(number)
        rest = sum(devices.gpus)
        self._whole.append(devices.gpus.count(WHOLE))
        self._unused[number] = self._whole[number]
        usable = 1000 * rest - sum([self._holes[free] for free in devices.gpus])
        if devices.cuts:
            for layout, code in zip(self._classes.kinds[devices.kind].layouts, devices.cuts, strict=True):
                if layout is not None:
                    rest += self.cuts.free(layout, code)
                    usable += self.cuts.usable(layout, code)
        self.rest[number], self.usable[number] = 1000 * rest, usable
        self._totals.append((1000 * rest, usable, self._whole[number]))
        self._fill(number)
        return number

    def crowded(self, used: int) -> bool:
        """Whether far more parts are kept than are in use; who uses them should then start afresh."""
        return len(self._listed) > 2 * used + _SPARE_PARTS

    def totals(self, part: int) -> tuple[int, int, int]:
        """Free GPU and usable GPU in millionths, and GPUs that nobody uses."""
        return self._totals[part]

    def of_part(self, part: int) -> tuple[Ints, Ints, Ints | None]:
        """Keys, unused GPUs and extra costs of one part by form."""
        self._with_forms()
        return self._keys[part], self._free[part], self._extra[part] if self._shaped else None

    def of_form(self, form: int) -> tuple[Ints, Ints, Ints | None]:
        """The same of one form by part."""
        self._with_forms()
        return self._keys[:, form], self._free[:, form], self._extra[:, form] if self._shaped else None

    def choose(self, devices: Devices, form: DeviceRequestShape) -> Choice:
        shape = self._classes.kinds[devices.kind].shape
        if shape is not None:
            found = self._joint(devices, form)
            assert found is not None
            return found.choice
        assert not form.slices, "only machines of known shape have cut cards"
        if not form.gpus:
            return Choice(())
        if not form.shared:
            free = [position for position, left in enumerate(devices.gpus) if left >= form.milli]
            return Choice(tuple(free[: form.gpus]))
        best = fitting_best(devices.gpus, form.milli, self._holes, lone=self._lone)
        assert best is not None
        return Choice((best,))

    # --- tables -----------------------------------------------------------------------------------------------------

    def _with_forms(self) -> None:
        """Fill in the forms that have come since."""
        forms = self._classes.forms
        if self._made == len(forms):
            return
        start, self._made = self._made, len(forms)
        if len(forms) > self._keys.shape[1]:
            self._keys = grown(self._keys, len(forms), fill=_NO, axis=1)
            self._free = grown(self._free, len(forms), axis=1)
            if self._shaped:
                self._extra = grown(self._extra, len(forms), axis=1)
        self._base.clear()
        self._drops.clear()
        new = forms[start:]
        shares = [form.milli if form.shared and not form.nics else _NEVER for form in new]
        wholes = [_NEVER if form.shared or form.nics else form.gpus for form in new]
        self._milli = np.concatenate([self._milli, np.array(shares, dtype=np.int64)])
        self._gpus = np.concatenate([self._gpus, np.array(wholes, dtype=np.int64)])
        for at in range(start, len(forms)):
            self._fill_form(at)

    def _fill(self, number: int) -> None:
        """All forms of one part."""
        devices, end = self._listed[number], self._made
        if devices.kind >= 0:
            self._worth_of = self._worth(devices)
            for at in range(end):
                self._fill_shaped(number, at)
            return
        least, free = self._base_of(self._whole[number])
        for left in dict.fromkeys(devices.gpus):
            if left:
                least = np.minimum(least, self._drops_of(left))
        if self._lone and self._whole[number]:
            broken = (least == self._drops_of(WHOLE)) & (least < _NO)
            # What B loses is B's to count.
            least = least - (broken * self._lone << KEY_BITS)
            free = free - broken
        self._keys[number, :end], self._free[number, :end] = least, free

    def _fill_form(self, at: int) -> None:
        """One form of all parts."""
        count = len(self._listed)
        for number in self._with_shape:
            self._fill_shaped(number, at)
        plain = np.array(
            [number for number in range(count) if number not in self._with_shape], dtype=np.int64
        )
        if not len(plain):
            return
        whole = self._unused[plain]
        milli, gpus = int(self._milli[at]), int(self._gpus[at])
        if milli == _NEVER:
            fits = gpus <= whole
            self._keys[plain, at] = np.where(fits, OFFSET - gpus * self._holes[WHOLE] << KEY_BITS, _NO)
            self._free[plain, at] = np.maximum(whole - gpus, 0)
            return
        free = self._amounts[plain]
        fresh = free == WHOLE
        rest = np.maximum(free - milli, 0)
        drop = self._hole[rest] - self._hole[free] + fresh * self._lone
        keys = np.where(free >= milli, OFFSET + drop << KEY_BITS | rest, _NO)
        least = keys.min(axis=1)
        if self._lone:
            broken = (least < _NO) & (np.where(fresh, keys, -1).max(axis=1) == least)
            least = least - (broken * self._lone << KEY_BITS)
            whole = whole - broken
        self._keys[plain, at], self._free[plain, at] = least, whole

    def _base_of(self, whole: int) -> tuple[Ints, Ints]:
        """Keys and unused GPUs of all forms on `whole` unused GPUs, shares left out."""
        found = self._base.get(whole)
        if found is None:
            fits = self._gpus <= whole
            keys = np.where(fits, OFFSET - self._gpus * self._holes[WHOLE] << KEY_BITS, _NO)
            left = np.where(self._gpus == _NEVER, whole, np.maximum(whole - self._gpus, 0))
            found = self._base[whole] = keys, left
        return found

    def _drops_of(self, left: int) -> Ints:
        """Keys of shares on a GPU with this much left, by form."""
        found = self._drops.get(left)
        if found is None:
            rest = left - self._milli
            drop = self._hole[np.maximum(rest, 0)] - self._holes[left] + (self._lone if left == WHOLE else 0)
            found = self._drops[left] = np.where(rest >= 0, OFFSET + drop << KEY_BITS | rest, _NO)
        return found

    def _worth(self, devices: Devices) -> DeviceSetValue:
        places = self._places.get(devices.kind)
        if places is None:
            kind = self._classes.kinds[devices.kind]
            assert kind.shape is not None
            places = self._places[devices.kind] = machine_devices(kind.shape, kind.spread)
        layouts = self._classes.kinds[devices.kind].layouts
        return DeviceSetValue(places, devices, self._holes, self._nics, cuts=self.cuts, layouts=layouts)

    def _joint(self, devices: Devices, form: DeviceRequestShape) -> joint.Joint | None:
        """Kept, since the same devices come again and again."""
        key = devices, form
        if key not in self.joints:
            if len(self.joints) >= _MOST_JOINTS:
                self.joints.clear()
            if self._worth_of is None or self._worth_of.devices != devices:
                self._worth_of = self._worth(devices)
            self.joints[key] = joint.best(self._worth_of, form)
        return self.joints[key]

    def _fill_shaped(self, number: int, at: int) -> None:
        devices = self._listed[number]
        found = self._joint(devices, self._classes.forms[at])
        if found is None:
            self._keys[number, at] = _NO
            return
        self._keys[number, at] = OFFSET + found.holes << KEY_BITS | found.left
        self._extra[number, at] = found.extra
        broken = sum(devices.gpus[gpu] == WHOLE for gpu in found.choice.gpus)
        self._free[number, at] = self._whole[number] - broken


def fitting_best(gpus: Sequence[int], milli: int, holes: Sequence[int], *, lone: int) -> int | None:
    """The GPU for a share where nothing is known of the machine: least dH, smallest leftover, the first."""
    fitting = [
        (holes[left - milli] - holes[left] + (lone if left == WHOLE else 0), left, position)
        for position, left in enumerate(gpus)
        if left >= milli
    ]
    return min(fitting)[2] if fitting else None
