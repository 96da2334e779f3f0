"""How much of a device a request takes: requests meet request policies.

For every capacity of a device (KEP 5075):

1. The request names the capacity, with or without the driver's domain. A capacity the device lacks: not
   eligible.
2. Not asked for: the policy's default, or all of it where there is no policy default.
3. Asked for without a policy: as is. With `validValues`: the smallest value that is enough. With
   `validRange`: below `min` becomes `min`; with `step`, rounded up to `min + n * step`. Above `max`, or above
   every value: not eligible.

Steps follow upstream's arithmetic: exact with thousandths when the gate DRAFractionalCapacityRange is on,
otherwise whole numbers. koordra's own: `percent` of a capacity is resolved on the device and rounded *down*
to a step, so that parts that make up a hundred percent always fit on one device; `whole` takes all of it.
`cores` are what the card needs for the TFLOPS that are asked for (gpu_compute.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from koordra.allocator.reasons import amount_text
from koordra.api import names
from koordra.api.claims import Alternative
from koordra.api.devices import Capacity, Device, RequestPolicy
from koordra.spelling import meant

_BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")
_DECIMAL: Final = ("E", "P", "T", "G", "M", "k")
_NANO: Final = 10**9

_Amount = tuple[Decimal, str]
"""How much, and the quantity in whose form it is spelled."""


@lru_cache(maxsize=1 << 16)
def nano(amount: Decimal) -> int:
    """The amount in units of 10^-9, the finest that Kubernetes knows; finer is rounded up, as there."""
    return int((amount * _NANO).to_integral_value(ROUND_CEILING))


def in_units(amount: int) -> Decimal:
    """An amount of `nano` as people write it."""
    return Decimal(amount) / _NANO


def is_of(name: str, capacity: str) -> bool:
    """Whether this is the capacity's name, with or without a domain."""
    return name.rpartition("/")[2] == capacity


def amount_of(device: Device, capacity: str) -> int:
    """What the device has of the capacity, in `nano`; 0 where it publishes none."""
    return next((nano(entry.value) for name, entry in device.capacity.items() if is_of(name, capacity)), 0)


def consumed_of(amounts: Mapping[str, Decimal], capacity: str) -> int:
    """What these amounts are of the capacity, in `nano`."""
    return sum([nano(amount) for name, amount in amounts.items() if is_of(name, capacity)])


def measures(name: str) -> bool:
    """Whether the capacity measures its device: a number of slots does not."""
    return name.rpartition("/")[2] != names.CAPACITY_SLOTS


def measured(amounts: Mapping[str, Decimal], device: Device) -> Decimal | None:
    """The largest part of any measuring capacity of the device that the amounts are; None where they are of
    none."""
    parts = [
        amount / device.capacity[name].value
        for name, amount in amounts.items()
        if measures(name) and name in device.capacity and device.capacity[name].value > 0
    ]
    return max(parts, default=None)


@dataclass(frozen=True)
class Demand:
    """What one request takes of one device: amount and spelling by capacity name as published."""

    amounts: Mapping[str, Decimal]
    spelled: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @cached_property
    def nano(self) -> Mapping[str, int]:
        """The amounts as whole numbers (`nano`), for whoever adds and compares many."""
        return {name: nano(amount) for name, amount in self.amounts.items()}

    @cached_property
    def key(self) -> Hashable:
        """The amounts as a value that can be compared quickly."""
        return tuple(sorted(self.nano.items()))


class ShortOf(NamedTuple):
    """A capacity of which more is asked for (`clause`) than the device has at all, `part` of what it has
    being too little."""

    clause: str
    has: str
    part: float


class Unmet(NamedTuple):
    """Why the device can never serve the request, free or not. `short_of` is the capacity that is too small,
    if it is that."""

    detail: str
    short_of: ShortOf | None = None


def demand_of(
    alternative: Alternative,
    device: Device,
    *,
    driver: str,
    fractional: bool = True,
    memory_percent: int | None = None,
    cores: Decimal | None = None,
    whole: frozenset[str] = frozenset(),
) -> Demand | Unmet:
    """What the request takes of the device, or why it cannot."""
    asked: dict[str, _Amount] = {}
    for name, amount in (alternative.capacity or {}).items():
        found = _published_name(name, device.capacity, driver)
        if found is None:
            return Unmet(f"{name}: requested {amount_text(name, amount)}, {_unknown(name, device.capacity)}")
        asked[found] = amount, alternative.capacity_spelled.get(name, str(amount))
    memory = _published_name(names.CAPACITY_MEMORY, device.capacity, driver)
    if memory_percent is not None and memory is not None:
        of_card, most = part_of(device.capacity[memory], memory_percent), asked.get(memory)
        if most is not None and of_card > most[0]:
            clause = f"{memory}: {memory_percent} % of the device is {amount_text(memory, of_card)}"
            return Unmet(f"{clause}, capacity.requests allows {most[1]}")
        asked[memory] = of_card, device.capacity[memory].spelled
    compute = _published_name(names.CAPACITY_CORES, device.capacity, driver)
    if cores is not None and compute is not None and compute not in asked:
        asked[compute] = cores, "1"
    amounts: dict[str, Decimal] = {}
    forms: dict[str, str] = {}
    for name, capacity in device.capacity.items():
        every = capacity.value, capacity.spelled
        taken, form = every if name in whole else _taken(asked.get(name), capacity, fractional=fractional)
        refused = _policy_refuses(name, taken, capacity.policy, fractional=fractional)
        if refused:
            return Unmet(f"{name}: requested {amount_text(name, taken)}, {refused}")
        if taken > capacity.value:
            clause, has = f"{name}: requested {amount_text(name, taken)}", amount_text(name, capacity.value)
            part = float((taken - capacity.value) / (capacity.value or 1))
            return Unmet(f"{clause}, the device has {has}", ShortOf(clause, has, part))
        amounts[name] = taken
        forms[name] = spell(taken, form)
    return Demand(amounts, forms)


def part_of(capacity: Capacity, percent: int) -> Decimal:
    """A percentage of a capacity, in whole steps: rounded down, so that parts of a hundred percent fit
    together."""
    exact = (capacity.value * percent / 100).to_integral_value(ROUND_FLOOR)
    policy = capacity.policy
    if policy is None or not policy.has_range or policy.step is None:
        return exact
    start = policy.minimum or Decimal(0)
    return max(start, start + (exact - start) // policy.step * policy.step)


def spell(amount: Decimal, form: str) -> str:
    """The amount in the form (binary or decimal suffixes) of the quantity it stems from, as the API server
    prints it."""
    if amount == 0:
        return "0"
    for power, suffix in ((3, "m"), (6, "u"), (9, "n")):
        if amount % 1 and (suffix == "n" or amount.scaleb(power) % 1 == 0):
            return f"{int(amount.scaleb(power))}{suffix}"
    suffixes, base = (_BINARY, 1024) if form.rstrip().endswith("i") else (_DECIMAL, 1000)
    for power, suffix in zip(range(6, 0, -1), suffixes, strict=True):
        if amount % base**power == 0:
            return f"{int(amount) // base**power}{suffix}"
    return str(int(amount))


def _published_name(name: str, capacity: Mapping[str, Capacity], driver: str) -> str | None:
    """The device's own spelling of a capacity: a bare name and one in the driver's domain mean the same."""
    if name in capacity:
        return name
    domain, _, identifier = name.rpartition("/")
    other = identifier if domain == driver else "" if domain else f"{driver}/{name}"
    return other if other in capacity else None


def _taken(asked: _Amount | None, capacity: Capacity, *, fractional: bool) -> _Amount:
    policy = capacity.policy
    if asked is None:
        if policy is not None and policy.default is not None:
            return policy.default, policy.spelled.get("default", capacity.spelled)
        return capacity.value, capacity.spelled
    amount, spelled = asked
    if policy is None:
        return asked
    if policy.has_range and policy.minimum is not None:
        if amount < policy.minimum:
            return policy.minimum, policy.spelled.get("min", spelled)
        if policy.step is None:
            return asked
        step, start = (_reading(one, fractional) for one in (policy.step, policy.minimum))
        steps = ((_reading(amount, fractional) - start) / step).to_integral_value(ROUND_CEILING)
        return start + steps * step, policy.spelled.get("step", spelled)
    for value in policy.valid_values:
        if amount <= value:
            return value, policy.spelled.get(str(value), spelled)
    return asked


def _reading(amount: Decimal, fractional: bool) -> Decimal:
    """A whole number (rounded up, as Quantity.Value does) where fractions are not enabled."""
    return amount if fractional else amount.to_integral_value(ROUND_CEILING)


def _unknown(name: str, capacity: Mapping[str, Capacity]) -> str:
    """The device has no capacity of this name: which it has."""
    alike = meant(name, capacity)
    hint = f"did you mean {alike}? It has" if alike else "it has"
    return f"the device has no capacity of that name; {hint} {', '.join(sorted(capacity)) or 'none'}"


def _policy_refuses(name: str, amount: Decimal, policy: RequestPolicy | None, *, fractional: bool) -> str:
    """Why the policy does not allow the amount; empty when it does. The default is always allowed."""
    if policy is None or amount == policy.default:
        return ""
    if policy.has_range:
        if policy.maximum is not None and amount > policy.maximum:
            return f"at most {amount_text(name, policy.maximum)} per request"
        if policy.step is not None:
            start = _reading(policy.minimum or Decimal(0), fractional)
            if (_reading(amount, fractional) - start) % _reading(policy.step, fractional) != 0:
                return f"not on a step of {amount_text(name, policy.step)} from {amount_text(name, start)}"
        return ""
    if policy.valid_values and amount not in policy.valid_values:
        return "allowed are " + ", ".join(amount_text(name, value) for value in policy.valid_values)
    return ""
