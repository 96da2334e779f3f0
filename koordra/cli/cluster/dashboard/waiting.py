"""Who waits for devices, those with the same trouble together. Pure.

claims of one owner that ask the same ─▶ one workload, explained once ─▶ workloads of one reason, one trouble
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from koordra.allocator.explain.telling import headline, lines
from koordra.allocator.reasons import Reason
from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller.explain.claims import waits_for
from koordra.controller.explain.forecast.forecast import Forecast
from koordra.controller.explain.question import Question, Subject
from koordra.inert import shortened

MOST_EXPLAINED: Final = 48
"""Workloads, those that have waited longest, of which it is worked out why they wait and until when."""
IN_GANGS: Final = "WaitsWithItsGang"
NOT_PLANNED: Final = "NotPlanned"
NEXT: Final = "FitsNow"
"""Words for what has no reason of the allocator's."""
MOST_OF_OWNER: Final = 200
"""Characters of a name that nobody checks."""
MOST_OF_GANG: Final = 3
"""Reasons of its members."""
_WHERE: Final = ("nodeSelector", "affinity", "tolerations")
_NUMBER: Final = re.compile(r"-\d+$")


@dataclass(frozen=True, slots=True)
class Workload:
    """`claims`: their keys; `pods`: keys of who uses them; `gang`: the key of theirs. `since`: RFC 3339, of
    the oldest. `told`: reasons in lines; empty where it was not worked out."""

    owner: str
    namespace: str
    claims: tuple[str, ...]
    pods: tuple[str, ...]
    gang: str
    since: str
    reason: str
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Workloads that wait for one reason. `told` is what is said of all of them alike."""

    reason: str
    told: tuple[str, ...]
    workloads: tuple[Workload, ...]

    @property
    def claims(self) -> int:
        return sum(len(one.claims) for one in self.workloads)


@dataclass(frozen=True, slots=True)
class _Alike:
    """What the claims of a workload have in common. `asked`: what for, and where it may be; of a gang
    nothing: its members wait together whatever they ask."""

    namespace: str
    owner: str
    gang: str
    asked: str
    is_planned: bool


def troubles_of(forecast: Forecast) -> list[Trouble]:
    """Those of the most claims first."""
    together: dict[tuple[str, tuple[str, ...]], list[Workload]] = {}
    for one in _workloads(forecast):
        together.setdefault((one.reason, one.told), []).append(one)
    troubles = [Trouble(reason, told, tuple(own)) for (reason, told), own in together.items()]
    return sorted(troubles, key=lambda one: (-one.claims, one.reason, one.told))


def _workloads(forecast: Forecast) -> list[Workload]:
    view = forecast.view
    gangs = {one.uid: gang.key for gang in view.gangs.values() for one in gang.members}
    together: dict[_Alike, list[str]] = {}
    waiting = [*forecast.lacking, *forecast.planned]
    for key in sorted(waiting, key=lambda key: (_since(view.cache.claims[key]), key)):
        users = view.cache.pod_index.users.get(key, ())
        gang = next((gangs[uid] for uid in map(objects.uid, users) if uid in gangs), "")
        alike = _alike(view.cache.claims[key], users, gang, is_planned=key in forecast.planned)
        together.setdefault(alike, []).append(key)
    return [
        _workload(forecast, alike, keys, explained=number < MOST_EXPLAINED)
        for number, (alike, keys) in enumerate(together.items())
    ]


def _since(claim: Fields) -> str:
    return str(objects.metadata(claim).get("creationTimestamp") or "")


def _alike(claim: Object, users: Sequence[Object], gang: str, *, is_planned: bool) -> _Alike:
    where = [{name: objects.spec_of(pod).get(name) for name in _WHERE} for pod in users[:1]]
    asked = json.dumps([objects.spec_of(claim).get("devices"), where], sort_keys=True)
    owner = f"Gang {gang.partition('/')[2]}" if gang else _owner(claim, users)
    return _Alike(objects.namespace(claim), owner, gang, "" if gang else asked, is_planned)


def _owner(claim: Object, users: Sequence[Object]) -> str:
    """Who made the pod that uses it; or the pod, or the claim itself, those that are numbered together."""
    for pod in users[:1]:
        for owner in objects.mappings(objects.metadata(pod).get("ownerReferences")):
            if owner.get("controller"):
                return shortened(f"{owner.get('kind')} {owner.get('name')}", MOST_OF_OWNER)
        return f"Pod {_NUMBER.sub('-*', objects.name(pod))}"
    return f"ResourceClaim {_NUMBER.sub('-*', objects.name(claim))}"


def _workload(forecast: Forecast, alike: _Alike, keys: Sequence[str], *, explained: bool) -> Workload:
    view, first = forecast.view, keys[0]
    users = [pod for key in keys for pod in view.cache.pod_index.users.get(key, ())]
    reason, told = _why(forecast, alike, first) if explained else (_word(forecast.told.get(first, ())), ())
    return Workload(
        alike.owner,
        alike.namespace,
        tuple(keys),
        tuple(dict.fromkeys(map(objects.key, users))),
        alike.gang,
        _since(view.cache.claims[first]),
        reason,
        told,
    )


def _why(forecast: Forecast, alike: _Alike, key: str) -> tuple[str, tuple[str, ...]]:
    if (planned := forecast.planned.get(key)) is not None:
        return NEXT, (f"the first of them on {planned.node}: the controller has not come to it yet",)
    if alike.gang:
        return IN_GANGS, tuple(_of_gang(forecast, alike.gang))
    found = forecast.why(key)
    if found is not None and found.reasons.get(key):
        return _word(found.reasons[key]), tuple(lines(found.reasons[key]))
    with forecast.when_done():
        words = waits_for(forecast.view, key)
    return NOT_PLANNED, (words or "the controller has not come to it yet",)


def _of_gang(forecast: Forecast, key: str) -> Iterator[str]:
    found = forecast.answer(Question(Subject.GANG, *key.split("/", 1)))[Subject.GANG]
    least = f", {found['least']} of which start together" if found["least"] is not None else ""
    yield f"gang {key}: {found['stage']}, {found['members']} members{least}: {found['text']}"
    lacking = (reason for reasons in found["lacking"].values() for reason in reasons)
    told = (one["detail"] for one in lacking if not one["detail"].startswith("gang "))
    yield from islice(dict.fromkeys(told), MOST_OF_GANG)


def _word(reasons: Sequence[Reason]) -> str:
    return headline(reasons) if reasons else NOT_PLANNED
