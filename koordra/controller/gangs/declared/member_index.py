"""At which position of its job a pod stands. Pure.

Sorted, the positions of a gang's members are the order in which the workload itself counts them: the master
before the workers, the first worker group before the second, the first job of a JobSet before the second. A
pod that its owner makes again has the same position, whatever its name and uid are by then.

A launcher without devices of its own (mpirun) takes no part in what it launches: it comes last, so that the
workers count from 0. With devices (MPIJob runLauncherAsWorker) it comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG_ROLE, whole_number
from koordra.controller.gangs.declared.workload_kind import kind_of, role_of, told

_FIRST: Final = ("launcher", "chief", "master", "head", "leader", "driver")
_BEFORE_LAST: Final = ("evaluator",)
_OTHERS, _LATE, _ASIDE = len(_FIRST), len(_FIRST) + 1, len(_FIRST) + 2


@dataclass(frozen=True, slots=True, order=True)
class MemberIndex:
    """Unique among the pods that the owners of a gang make at one time (but see `member_indexes`).

    `place`     that of its role among the roles of its kind
    `apart`     what tells apart pods of one number: the job and its role, the worker group, the task
    `numbers`   outermost first
    `role`      what it does, as the workload calls it, in lower case; empty where it has no roles
    """

    place: int
    apart: tuple[str, ...]
    numbers: tuple[int, ...]
    role: str = field(default="", compare=False)

    def __str__(self) -> str:
        """For people, and as a key: two positions of a gang that read the same are the same."""
        return "/".join([*self.apart, *map(str, self.numbers)])

    def at(self, number: int) -> MemberIndex:
        """The position of this number in the same row."""
        return replace(self, numbers=(*self.numbers[:-1], number))

    @property
    def row(self) -> tuple[object, ...]:
        """Those of one row are counted by `numbers[-1]`: the workers of a group, the pods of a Job."""
        return self.place, self.apart, self.numbers[:-1]


def member_index_of(pod: Mapping[str, Any]) -> MemberIndex | None:
    """None where nobody numbered the pod, or what it says is no number."""
    kind = kind_of(pod)
    if kind is None:
        return None
    numbers = [whole_number(told(pod, name) or "0") for name in kind.indexes]
    if None in numbers:
        return None
    role = role_of(pod, kind)
    place, apart = _place(role, pod), tuple(told(pod, name) for name in kind.apart)
    if kind.leads:
        role = "worker" if numbers[-1] else "leader"
    return MemberIndex(place, apart, tuple(number or 0 for number in numbers), role)


def member_indexes(pods: Iterable[Object]) -> dict[str, MemberIndex]:
    """The positions of a gang's pods, by uid. Positions that several pods claim say nothing (two pods of a
    worker group that is not numbered): those pods have none."""
    found = {objects.uid(pod): index for pod in pods if (index := member_index_of(pod)) is not None}
    claimed = Counter(found.values())
    return {uid: index for uid, index in found.items() if claimed[index] == 1}


def _place(role: str, pod: Mapping[str, Any]) -> int:
    if role == "launcher" and not objects.spec_of(pod).get("resourceClaims"):
        return _ASIDE
    if role in _FIRST:
        return _FIRST.index(role)
    return _LATE if role in _BEFORE_LAST else _OTHERS


def workload_role(pod: Object) -> str:
    """What the pod does, as its workload calls it."""
    index = member_index_of(pod)
    return "" if index is None else "/".join(dict.fromkeys(filter(None, (index.role, *index.apart))))


def role_of_pod(pod: Object) -> str:
    """The part that the pod says it is in; else what its workload calls it."""
    return objects.annotations_of(pod).get(GANG_ROLE, "") or workload_role(pod)
