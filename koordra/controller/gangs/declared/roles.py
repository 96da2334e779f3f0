"""What the roles of a gang say of themselves: how many members each needs and may have, and after whom they
start. Pure.

    koordra.io/gang-role-min, -max    of the role that the pods are in
    koordra.io/gang-start-after       roles whose members are Ready before the pod's gate is lifted
    Koordinator                       each gang of `groups` is a role, and needs its min-available
    Volcano                           PodGroup minTaskMember, by task
    KAI, Grove                        each subgroup is a role (subgroups)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import (
    GANG_ROLE,
    GANG_ROLE_MAX,
    GANG_ROLE_MIN,
    GANG_START_AFTER,
    starts_after,
)
from koordra.controller.gangs.declared.gang_ref import KOORDINATOR, GangRef
from koordra.controller.gangs.declared.member_index import role_of_pod
from koordra.controller.gangs.declared.said import Said
from koordra.controller.gangs.declared.subgroups import Subgroups
from koordra.controller.gangs.declared.topology_terms import by, is_inside
from koordra.controller.gangs.declared.workload_kind import VOLCANO, told

MOST_BEFORE: Final = 16
_OF_ROLE: Final = (GANG_ROLE_MIN, GANG_ROLE_MAX)


@dataclass(frozen=True, slots=True)
class RoleTerms:
    """`pods`: by uid, those that are in it. `most`: None is no bound."""

    name: str
    pods: frozenset[str]
    least: int = 0
    most: int | None = None

    def lacks(self, have: Collection[str]) -> int:
        """How many more it needs than it has of these."""
        return max(0, self.least - len(self.pods.intersection(have))) if self.least else 0


def roles_of(
    ref: GangRef, said: Said, spec: Mapping[str, Any], order: StartOrder, subgroups: Subgroups
) -> tuple[RoleTerms, ...]:
    """`spec`: of the gang's pod group. Of a role that others start after one member is needed."""
    found = [*_own_roles(said), *_joined(ref, said)]
    known = {role.name for role in found if role.least}
    found += [RoleTerms(name, pods, 1) for name, pods in order.roles.items() if name not in known]
    found += [
        RoleTerms(one.subgroup.name, _uids(one.pods), one.subgroup.least)
        for one in subgroups.all
        if one.subgroup.least and not one.optional
    ]
    tasks = spec.get("minTaskMember")
    for task, least in sorted(tasks.items()) if isinstance(tasks, Mapping) else ():
        pods = [pod for pod in said.pods if told(pod, VOLCANO + "task-spec") == task]
        if isinstance(least, int) and least > 0:
            found.append(RoleTerms(str(task), _uids(pods), least))
    return tuple(found)


def _own_roles(said: Said) -> list[RoleTerms]:
    telling = [pod for pod in said.pods if any(name in objects.annotations_of(pod) for name in _OF_ROLE)]
    found = []
    for role, pods in by(telling, role_of_pod).items():
        own = Said(pods, said.problems)
        least, most = (own.number(name) for name in _OF_ROLE)
        if not role:
            said.problems.append(
                f"{GANG_ROLE_MIN} or -max without {GANG_ROLE}: name the role that the pods are in"
            )
        if most is not None and least is not None and most < least:
            said.problems.append(f"role {role}: {GANG_ROLE_MAX} is {most} and {GANG_ROLE_MIN} is {least}")
        found.append(RoleTerms(role, _uids(pods), least or 0, most))
    return found


def _joined(ref: GangRef, said: Said) -> list[RoleTerms]:
    """Koordinator's gangs of which none starts before all can."""
    own = by(said.pods, lambda pod: objects.annotations_of(pod).get(KOORDINATOR + "name", ""))
    found = []
    for name in ref.joined:
        pods = own.get(name, [])
        least = Said(pods, said.problems).number(KOORDINATOR + "min-available")
        if pods and least is None and not said.problems:
            said.problems.append(f"{KOORDINATOR}min-available is missing on the pods of gang {name}")
        found.append(RoleTerms(name, _uids(pods), least or 1))
    return found


class StartOrder(NamedTuple):
    """`before`, by uid: the pods that have to be Ready before this one's gate is lifted; of a role that
    nobody is in, what `ended_role` calls it. `roles`: those that others start after, by name, which are
    needed for that; nobody of them may be there yet."""

    before: Mapping[str, frozenset[str]]
    roles: Mapping[str, frozenset[str]]


def start_order(pods: Sequence[Object], problems: list[str], ended: Collection[str]) -> StartOrder:
    """`ended`: roles of which somebody has ended well, as `ended_role` calls them."""
    telling = {
        objects.uid(pod): words for pod in pods if (words := starts_after(objects.annotations_of(pod)))
    }
    longest = max(map(len, telling.values()), default=0)
    if longest > MOST_BEFORE:
        problems.append(f"{GANG_START_AFTER} names {longest} roles: {MOST_BEFORE} at most")
        telling = {}
    if not telling:
        return StartOrder({}, {})
    roles = by(pods, role_of_pod)
    after: dict[str, set[str]] = {
        role: {name for pod in own for name in telling.get(objects.uid(pod), ())}
        for role, own in roles.items()
    }
    before: dict[str, set[str]] = {}
    for name in sorted(set[str]().union(*after.values())):
        before[name] = {role for role in roles if is_inside(role, name)}
    if _is_circular({role: {one for name in names for one in before[name]} for role, names in after.items()}):
        problems.append(f"{GANG_START_AFTER}: its roles wait for each other: let one of them start first")
        return StartOrder({}, {})
    of_role = {
        name: _uids(pod for role in roles_in for pod in roles[role]) for name, roles_in in before.items()
    }
    found = {
        words: frozenset[str]().union(*(of_role[name] or {ended_role(name)} for name in words))
        for words in set(telling.values())
    }
    needed = {name: uids for name, uids in of_role.items() if uids or ended_role(name) not in ended}
    return StartOrder({uid: found[words] for uid, words in telling.items()}, needed)


def ended_role(name: str) -> str:
    """A role of which somebody has ended well, among those who are Ready."""
    return f"role {name}"


def _is_circular(after: Mapping[str, Collection[str]]) -> bool:
    waiting = dict(after)
    while waiting:
        free = [role for role, before in waiting.items() if waiting.keys().isdisjoint(before)]
        if not free:
            return True
        for role in free:
            del waiting[role]
    return False


def _uids(pods: Iterable[Object]) -> frozenset[str]:
    return frozenset(map(objects.uid, pods))
