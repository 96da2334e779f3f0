"""What comes of an example, and how a report of the demo (report.document) differs from it. Pure.

pods:                    every pod of the report is in one entry
  - name: pretrain-*     a pattern
    count: 4             how many there are [1]
    phase: Running       [Running]
    nodes: 4             on how many nodes they are together [not compared, like all below]
    blocks: 1            in how many blocks
    cards: 1             how many different GPUs they have together
    devices: {gpu: 8, nic: 8}    what each of them has, by type [none]
    consumed: {gpu: {memory: 20Gi}}    what each device of that type gives
    level: PXB           the worst level between its GPUs and NICs
    ranks: 0-3           those of the gang's members
    env: {NAME: value}   variables of each pod, in some container of it
    prints: [text]       what is in the output of each, where commands are run
    after: pretrain-*    none of them had devices before one of those pods had ended
waiting:                 every claim that waits is in one entry
  - claim: too-large
    reason: InsufficientCapacity
    says: "requested 120Gi"
events:                  these were told, of gangs, or failed on a node
  - {reason: GangGrows, says: gang default/elastic}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Final

from koordra.api.reader import Reader
from koordra.errors import InvalidManifest

Report = Mapping[str, Any]
_NUMBERS: Final = ("nodes", "blocks", "cards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods whose names match `name`; None, or nothing, is not compared, but for `devices`."""

    name: str
    count: int = 1
    phase: str = "Running"
    nodes: int | None = None
    blocks: int | None = None
    cards: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    consumed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    level: str | None = None
    ranks: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    prints: tuple[str, ...] = ()
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    claim: str
    reason: str
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    reason: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    pods: tuple[Pods, ...]
    waiting: tuple[Waiting, ...] = ()
    events: tuple[Told, ...] = ()


def read_outcome(read: Reader) -> Outcome:
    """Raises InvalidManifest for a field that is none."""
    if unknown := sorted(read.data.keys() - {"pods", "waiting", "events"}):
        raise read.wrong("is no field of an outcome", at=unknown[0])
    found = Outcome(
        tuple(_entry(Pods, one) for one in read.each("pods")),
        tuple(_entry(Waiting, one) for one in read.each("waiting")),
        tuple(_entry(Told, one) for one in read.each("events")),
    )
    if not found.pods:
        raise read.wrong("names no pod, so nothing could come of it", at="pods")
    return found


def _entry(kind: Any, read: Reader) -> Any:
    known = {one.name for one in fields(kind)}
    if unknown := sorted(read.data.keys() - known):
        raise read.wrong(f"is none of {', '.join(sorted(known))}", at=unknown[0])
    read.texts("prints")  # a text alone would be one of letters
    try:
        return kind(**read.data)
    except TypeError as error:
        raise InvalidManifest(str(error), object=read.object, field=read.field) from error


def differences(wanted: Outcome, report: Report) -> list[str]:
    """Sentences about what is not as wanted, none where all is."""
    found: list[str] = []
    left = {pod["name"]: pod for pod in report["pods"]}
    for entry in wanted.pods:
        mine = [left.pop(name) for name in list(left) if fnmatchcase(name, entry.name)]
        found += [f"{entry.name}: {text}" for text in _pods(entry, mine, report)]
    found += [f"pod {name} is no part of it" for name in left]
    found += _waiting(wanted.waiting, report["pending"])
    found += [
        f"nothing told {one.reason} {one.says}".rstrip()
        for one in wanted.events
        if not any(
            one.reason == told["reason"] and one.says in told["message"] for told in report.get("events", ())
        )
    ]
    return found


def _pods(wanted: Pods, found: Sequence[Report], report: Report) -> Iterator[str]:
    right = [pod for pod in found if pod["phase"] == wanted.phase]
    if len(right) != wanted.count or len(found) != wanted.count:
        phases = ", ".join(sorted(str(pod["phase"]) for pod in found)) or "none is there"
        yield f"{wanted.count} should be {wanted.phase}; {phases}"
        return
    devices = [_devices(pod, report) for pod in found]
    seen = {
        "nodes": len({pod["node"] for pod in found}),
        "blocks": len({pod["block"] for pod in found}),
        "cards": len(
            {(one["node"], one["device"]) for held in devices for one in held if one["type"] == "gpu"}
        ),
    }
    for what in _NUMBERS:
        if getattr(wanted, what) not in (None, seen[what]):
            yield f"{what}: {getattr(wanted, what)} expected, {seen[what]} seen"
    ranks = sorted(-1 if pod["rank"] is None else pod["rank"] for pod in found)
    if wanted.ranks is not None and ranks != _numbers(wanted.ranks):
        yield f"ranks: {wanted.ranks} expected, {ranks} seen"
    for pod, held in zip(found, devices, strict=True):
        yield from _pod(wanted, pod, held, report)
    if wanted.after is not None:
        yield from _too_early(wanted.after, found, report)


def _too_early(others: str, found: Sequence[Report], report: Report) -> Iterator[str]:
    """Times are known to the second."""
    ended = [pod["ended"] for pod in report["pods"] if fnmatchcase(pod["name"], others)]
    first = min(filter(None, ended), default=None)
    if first is None or None in ended:
        yield f"{others} has not ended, after which they start"
        return
    for pod in found:
        for claim in _claims(pod, report):
            if claim["allocated"] < first:
                yield f"{pod['name']} had devices at {claim['allocated']}, while all of {others} ran, until {first}"
    gangs = {pod["gang"] for pod in found}
    for told in report.get("events", ()):
        if told["reason"] == "GangRolledBack" and any(f"/{gang}:" in told["message"] for gang in gangs):
            yield f"they held devices for a while: {told['message']}"


def _pod(wanted: Pods, pod: Report, held: Sequence[Report], report: Report) -> Iterator[str]:
    counts = {
        kind: sum(one["type"] == kind for one in held) for kind in sorted({one["type"] for one in held})
    }
    if counts != dict(wanted.devices):
        yield f"{pod['name']} has {counts or 'no device'}; {dict(wanted.devices)} expected"
    for kind, amounts in wanted.consumed.items():
        for one in held:
            wrong = {
                name for name, amount in amounts.items() if one["consumedCapacity"].get(name) != str(amount)
            }
            if one["type"] == kind and wrong:
                yield f"{pod['name']}: {one['device']} gives {one['consumedCapacity']}; {dict(amounts)} expected"
    levels = {claim["level"] for claim in _claims(pod, report)}
    if wanted.level is not None and wanted.level not in levels:
        yield f"{pod['name']} is at level {', '.join(map(str, levels))}; {wanted.level} expected"
    own = [one["env"] for one in report["containers"] if one["pod"] == pod["name"]]
    said = "".join(one["text"] for one in report.get("output", ()) if one["pod"] == pod["name"])
    for text in wanted.prints:
        if text not in said:
            yield f"{pod['name']} has not printed {text!r}; its last words: {said[-300:] or 'none'}"
    for name, value in wanted.env.items():
        if str(value) not in {env.get(name) for env in own}:
            yield f"{pod['name']}: {name}={value} is in none of its containers"


def _claims(pod: Report, report: Report) -> list[Report]:
    return [
        one for one in report["claims"] if pod["name"] in one["pods"] and one["namespace"] == pod["namespace"]
    ]


def _devices(pod: Report, report: Report) -> list[Report]:
    """What the pod's claims hold, each device once."""
    found = {
        (claim["node"], device["device"]): {**device, "node": claim["node"]}
        for claim in _claims(pod, report)
        for device in claim["devices"]
    }
    return list(found.values())


def _waiting(wanted: Sequence[Waiting], pending: Sequence[Report]) -> Iterator[str]:
    left = list(pending)
    for entry in wanted:
        mine = [one for one in left if fnmatchcase(one["name"], entry.claim)]
        left = [one for one in left if one not in mine]
        told = [(one["reason"], one["detail"]) for claim in mine for one in claim["reasons"]]
        if not any(reason == entry.reason and entry.says in detail for reason, detail in told):
            seen = "; ".join(sorted({f"{reason}: {detail}" for reason, detail in told})[:3])
            yield f"claim {entry.claim} should wait, {entry.reason}: {entry.says}; {seen or 'it does not wait'}"
    yield from (f"claim {one['name']} waits, and should not" for one in left)


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))
