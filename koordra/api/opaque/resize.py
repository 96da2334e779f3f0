"""Live changes of a GPU share: what a claim asks for while its containers run, and what its class allows.
Pure.

    ResourceClaim   metadata.annotations["koordra.io/resize"]: a JSON object, by request
                    {"gpu": {"memory": "20Gi", "cores": 40, "coresPolicy": "Elastic", "priority": 10}}
    class           GpuConfig.resize: {memory: {min: 4Gi, max: 40Gi}, cores: {min: 10, max: 60},
                    priority: {min: 10, max: 100}, coresPolicy: [Hard, Elastic]}

Everybody who may change a claim may write its annotations, so it is a wish. The bounds are those that the
class had when the claim was allocated (they are in the allocation); what the class does not name cannot be
changed. An allocation is never written twice: what a share has beyond it is held for it, by a DeviceHold of
the controller's, and what it does without stays its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.api.reader import Reader
from koordra.errors import InvalidInput, InvalidParameters
from koordra.quantity import canonical

ANNOTATION: Final = "koordra.io/resize"
"""Annotation on a ResourceClaim: what its running shares are to be changed to, by request, within the bounds
of the class (`GpuConfig.resize`)."""
LONGEST: Final = 8 << 10
"""Characters of the annotation."""
MEBIBYTE: Final = 1 << 20
POLICIES: Final = ("Hard", "Elastic")
MOST_CORES: Final = 99
"""Percent; all of a card is no share."""
LEAST_CORES: Final = 1
LAST_PRIORITY: Final = 100
_FIELDS: Final = ("memory", "cores", "coresPolicy", "priority")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a running share may be changed to; what is absent stays as it is allocated."""

    memory: tuple[Decimal, Decimal] | None = None
    """Least and most of it."""
    cores: tuple[Decimal, Decimal] | None = None
    """Least and most, in percent of the card."""
    priority: tuple[Decimal, Decimal] | None = None
    """Least and most; the smallest has idle compute first."""
    policies: tuple[str, ...] = ()
    """The words that `coresPolicy` may become."""

    def to_dict(self) -> dict[str, object]:
        spans = {"memory": self.memory, "cores": self.cores, "priority": self.priority}
        found: dict[str, object] = {
            name: {"min": canonical(span[0]), "max": canonical(span[1])}
            for name, span in spans.items()
            if span is not None
        }
        return {**found, **({"coresPolicy": list(self.policies)} if self.policies else {})}


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request asks for; None: nothing else than it has."""

    memory: Decimal | None = None
    cores: Decimal | None = None
    policy: str | None = None
    priority: int | None = None


def decode_bounds(read: Reader) -> Bounds:
    """`GpuConfig.resize`. Raises InvalidParameters naming the field."""
    read.only(*_FIELDS)
    policies = read.texts("coresPolicy")
    for index, word in enumerate(policies):
        if word not in POLICIES:
            raise read.wrong(
                f"{word!r} is not allowed", f"use {', '.join(POLICIES)}", at=f"coresPolicy[{index}]"
            )
    return Bounds(
        _span(read, "memory", least=MEBIBYTE, most=1 << 60),
        _span(read, "cores", least=LEAST_CORES, most=MOST_CORES),
        _span(read, "priority", least=0, most=LAST_PRIORITY),
        policies,
    )


def _span(read: Reader, name: str, *, least: int, most: int) -> tuple[Decimal, Decimal] | None:
    if (inner := read.optional(name)) is None:
        return None
    inner.only("min", "max")
    for end in ("min", "max"):
        if inner.data.get(end) is None:
            raise inner.wrong("is missing", "write both min and max", at=end)
        amount = inner.amount(end)
        if not least <= amount <= most or amount != amount.to_integral_value():
            raise inner.wrong(
                f"{inner.data[end]!r} is not a whole number from {canonical(least)} to {canonical(most)}",
                at=end,
            )
    found = inner.amount("min"), inner.amount("max")
    if found[0] > found[1]:
        raise inner.wrong("is above max", "exchange the two", at="min")
    return found


def wishes(claim: Fields) -> dict[str, Wish]:
    """What the claim's annotation asks for, by request. Raises InvalidParameters naming what cannot be
    read."""
    text = objects.annotations_of(claim).get(ANNOTATION, "")
    field = f"metadata.annotations[{ANNOTATION}]"
    here = Reader({}, object=objects.describe(claim), field=field, error=InvalidParameters)
    if len(text) > LONGEST:
        raise here.wrong(f"is longer than {LONGEST} characters", "name each request once")
    try:
        said = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise here.wrong(
            "is not JSON", 'write {"gpu": {"memory": "20Gi"}}, with the request\'s name'
        ) from None
    read = Reader(said, object=here.object, field=field, error=InvalidParameters)
    return {name: _wish(inner) for name, inner in _entries(read)}


def _entries(read: Reader) -> Iterator[tuple[str, Reader]]:
    for name, value in read.data.items():
        yield str(name), Reader(value, object=read.object, field=read.place(str(name)), error=read.error)


def _wish(read: Reader) -> Wish:
    read.only(*_FIELDS)
    memory, cores = read.amount_or_none("memory"), read.amount_or_none("cores")
    if memory is not None and memory % MEBIBYTE:
        raise read.wrong(f"{read.data['memory']!r} is no whole number of MiB", at="memory")
    if cores is not None and cores != cores.to_integral_value():
        raise read.wrong(f"{read.data['cores']!r} is no whole number of percent", at="cores")
    policy = read.choice("coresPolicy", POLICIES) or None
    return Wish(memory, cores, policy, read.between("priority", 0, LAST_PRIORITY))


def refusal(wish: Wish, bounds: Bounds | None, *, has: Mapping[str, Decimal]) -> str:
    """Why a share with these amounts may not have what is asked for, empty where it may. Of what stays as it
    is nothing is asked."""
    allowed = bounds or Bounds()
    for name, asked, span in (
        (names.CAPACITY_MEMORY, wish.memory, allowed.memory),
        (names.CAPACITY_CORES, wish.cores, allowed.cores),
    ):
        if asked is None:
            continue
        if not has.get(name):
            return f"{name}: the share has none of its own that could be changed"
        if asked != has[name] and (why := _beyond(name, asked, span)):
            return why
    if wish.policy is not None and wish.policy not in allowed.policies:
        only = (
            f"allows only {', '.join(allowed.policies)}"
            if allowed.policies
            else "does not allow to change it"
        )
        return f"coresPolicy: {wish.policy} is asked for, the class {only}"
    if wish.priority is not None:
        return _beyond("priority", Decimal(wish.priority), allowed.priority)
    return ""


def _beyond(name: str, asked: Decimal, span: tuple[Decimal, Decimal] | None) -> str:
    if span is None:
        return f"{name}: its class does not allow to change it (GpuConfig.resize.{name})"
    if span[0] <= asked <= span[1]:
        return ""
    return f"{name}: {canonical(asked)} is asked for, the class allows {canonical(span[0])} to {canonical(span[1])}"


def unknown(asked: Mapping[str, Wish], requests: Sequence[str]) -> str:
    """Why a request that is named is none of the claim's; empty where all are."""
    for name in asked:
        if name not in requests:
            return f"there is no request {name!r} of a GPU share; there are {', '.join(requests) or 'none'}"
    return ""


def wish_for(asked: Mapping[str, Wish], request: str) -> Wish:
    """`request` as results call it: `gpu`, or `gpu/a100` of alternatives, which `gpu` is about, too."""
    return asked.get(request) or asked.get(request.partition("/")[0]) or Wish()


def readable(claim: Fields) -> tuple[dict[str, Wish], str]:
    """The wishes, or none and why they cannot be read."""
    try:
        return wishes(claim), ""
    except InvalidInput as error:
        return {}, str(error)
