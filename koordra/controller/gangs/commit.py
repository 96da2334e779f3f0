"""The writes of a gang: its allocations, all or none of the least, and then its gates.

allocate   claim by claim, each conditional (allocation/writes.py). One that is not written ends it, and what
           was written in this pass is given back at once. Where no answer comes the pass ends: the next one,
           of whatever process, finds the gang PartiallyAllocated and gives back
ungate     pod by pod, each conditional on the pod's version, with the annotation gate.koordra.io/gang in the
           same write, by which the pod is known as let go from then on, and what it is told of its gang. The
           first one that lands commits the gang
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache.ungate_tracker import UngateTracker
from koordra.controller.gangs.declared.annotations import COMMITTED, HELD
from koordra.controller.gangs.imex.domains import with_domain
from koordra.controller.gangs.live.writes import LiveFiles
from koordra.controller.gangs.member_placement import PlacementRequest
from koordra.controller.gangs.membership import Gang, Member
from koordra.errors import ApiUnreachable
from koordra.logs import get_logger
from koordra.placement.gang import GangPlaced

log = get_logger(__name__)


def allocate(
    request: PlacementRequest,
    answer: GangPlaced,
    config: Mapping[str, Object],
    *,
    context: PassContext,
    undo: bool,
) -> bool:
    """Write everything that the answer gives; False when that did not succeed, and then, with `undo`, nothing
    is left of it.

    `config`: claim key -> what is appended to its allocation's config. Raises ApiUnreachable where no answer
    comes.
    """
    done: list[Object] = []
    for placed in answer.members:
        group = request.groups[placed.key]
        for key in sorted(placed.allocations):
            allocation = with_domain(
                placed.allocations[key], f"gang {request.gang.key}", request.placer.nodes
            )
            allocation = _with_config(allocation, config.get(key))
            written = context.allocate(key, group, allocation, level=placed.levels.get(key))
            if written.obj is None or not written.ok:
                for claim in reversed(done) if undo else ():
                    context.give_back(
                        claim, why=f"another member of gang {request.gang.key} could not be written"
                    )
                return False
            done.append(written.obj)
    return True


def _with_config(allocation: Fields, more: Object | None) -> Fields:
    if more is None:
        return allocation
    devices = allocation["devices"]
    return {**allocation, "devices": {**devices, "config": [*(devices.get("config") or ()), more]}}


def give_back(claims: tuple[Object, ...], *, why: str, context: PassContext) -> bool:
    """Free claims that members of a gang hold without the gang; False when one is not free yet."""
    for claim in claims:
        context.give_back(claim, why=why)
    return not any(
        claims_of.is_allocated(now)
        for claim in claims
        if (now := context.cache.claims.get(objects.key(claim))) is not None
    )


def ungate(
    gang: Gang,
    members: tuple[Member, ...],
    *,
    context: PassContext,
    ungating: UngateTracker,
    live: LiveFiles,
) -> None:
    """Let the members go, each told the gang if it has a file for it. A pod whose own annotations leave no
    room goes untold. Raises ApiUnreachable where no answer comes."""
    told = live.at_start(gang, members)
    for member in members:
        if ungating.is_ungated(member.pod) or not context.may_ungate(member.pod):
            continue
        ungating.sending(member.pod)
        mark, files = {COMMITTED: gang.ref.name}, told.get(member.uid, {})
        written = context.writer.ungate_member(member.pod, {**mark, **files})
        if files and written.ok:
            live.started(gang.key, member.uid, files)
        elif files and written.outcome is WriteOutcome.REFUSED:
            written = context.writer.ungate_member(member.pod, mark)
        if written.outcome is WriteOutcome.UNREACHABLE:
            raise ApiUnreachable(written.message)
        context.settled(written)
        if written.ok:
            ungating.answered(member.pod, ungated=True)
            log.info("pod_ungated", pod=member.key, gang=gang.key)
        elif written.outcome is WriteOutcome.REFUSED:
            ungating.answered(member.pod, ungated=False)
            context.gate_refused(member.pod, message=written.message)


def invalidate_pending_ungate(
    members: tuple[Member, ...], *, context: PassContext, ungating: UngateTracker
) -> None:
    """Write pods whose ungating is in doubt: once they have another version, that write can not take effect
    any more. Where it has already, this write is a conflict, and the caches will show it. Raises
    ApiUnreachable where no answer comes."""
    for member in members:
        written = context.settled(
            context.writer.hold(member.pod, {HELD: objects.resource_version(member.pod)})
        )
        if written.ok or written.outcome is WriteOutcome.GONE:
            ungating.answered(member.pod, ungated=False)
            log.info("pending_ungate_invalidated", pod=member.key)


def evict(pods: Iterable[Object], *, context: PassContext) -> None:
    """Ask all of them to end; some may not end now."""
    for pod in pods:
        written = context.writer.evict(pod)
        log.info("pod_evicted", pod=objects.key(pod), outcome=written.outcome.value, message=written.message)
        if written.outcome in {WriteOutcome.UNREACHABLE, WriteOutcome.FENCED}:
            raise ApiUnreachable(written.message)
