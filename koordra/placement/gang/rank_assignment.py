"""Ranks: who gets which, and the rank map of a placed gang as every member's allocation tells it
(`koordra.api.opaque.gang_member`)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields
from koordra.api.opaque.gang_member import GangMember
from koordra.placement.gang.types import Fixed, GangPlaced, NewMember, PlacedMember

_GPU_PREFIX: Final = "gpu-"


class _RankedMember(NamedTuple):
    rank: int
    key: str
    node: str
    gpus: int


def ranks(placed: Sequence[tuple[NewMember, PlacedMember]], fixed: Sequence[Fixed]) -> list[PlacedMember]:
    """Every member's rank, from 0 on without a gap: in the order of the workload's own numbers where all that
    are placed have one, else along the fabric, which is the order given, and then those without claims: a
    launcher takes no part in what it launches.

    Members that stay keep theirs. Beside them a member takes the rank that is known as its own, or one that
    is free (an Indexed Job that runs in waves has numbers beyond; its later pods take the ranks of those that
    ended).
    """
    held = {one.rank for one in fixed}
    given = dict[str, int]()
    for member, one in placed:
        if fixed and member.rank is not None and member.rank not in held:
            given[one.key] = member.rank
            held.add(member.rank)
    in_order = list(placed)
    if all(member.index is not None for member, _ in placed):
        in_order.sort(key=lambda each: each[0].index or 0)
    else:
        in_order.sort(key=lambda each: not (each[0].group.claims or each[0].group.allocated))
    free = (number for number in itertools.count() if number not in held)
    found = [replace(one, rank=given[one.key] if one.key in given else next(free)) for _, one in in_order]
    return sorted(found, key=lambda one: one.rank)


def gang_members(
    gang: str,
    answer: GangPlaced,
    *,
    fixed: Sequence[Fixed] = (),
    hosts: Mapping[str, str] | None = None,
    unnamed: Collection[str] = (),
) -> dict[str, dict[str, Any]]:
    """For each claim that is allocated now (`namespace/name`) the entry for its allocation's
    `devices.config`.

    `hosts`: by member key, the name under which other members reach the pod; members without one are told by
    their key's name. `unnamed` members have no host yet: then only the leader's is told.
    """
    ranked = [
        _RankedMember(one.rank, one.key, one.node, gpus_of(one.allocations.values()))
        for one in answer.members
    ]
    for each in fixed:
        held = [objects.status_of(claim).get("allocation") or {} for claim in each.claims]
        rank = -1 if each.rank is None else each.rank
        ranked.append(_RankedMember(rank, each.key, each.node, gpus_of(held)))
    ranked.sort(key=lambda one: (one.rank < 0, one))
    beside: dict[str, list[str]] = {}
    for one in ranked:
        beside.setdefault(one.node, []).append(one.key)
    nodes = {node: number for number, node in enumerate(beside)}
    own_host = [(hosts or {}).get(one.key) or one.key.rpartition("/")[2] for one in ranked]
    leader = "" if ranked and ranked[0].key in unnamed else next(iter(own_host), "")
    slots = tuple(one.gpus for one in ranked)
    host_ranks = _all_ranks([one.rank for one in ranked])
    if any(one.key in unnamed for one in ranked):
        own_host, slots, host_ranks = [], (), ()
    found: dict[str, dict[str, Any]] = {}
    for member in answer.members:
        entry = GangMember(
            gang=gang,
            rank=member.rank,
            size=answer.size,
            node_rank=nodes[member.node],
            nodes=len(nodes),
            local_rank=beside[member.node].index(member.key),
            local_size=len(beside[member.node]),
            domains={level: name for level, name in member.domains.items() if name},
            rails=tuple(rail for rail in dict.fromkeys(member.rails) if rail),
            leader=leader,
            hosts=tuple(own_host),
            slots=slots,
            host_ranks=host_ranks,
        ).entry()
        found |= dict.fromkeys(member.allocations, entry)
    return found


def _all_ranks(ranks: Sequence[int]) -> tuple[int, ...]:
    """Nothing where they count from 0; whose rank is not known is behind all others."""
    if list(ranks) == list(range(len(ranks))):
        return ()
    behind = itertools.count(max(ranks) + 1)
    return tuple(next(behind) if rank < 0 else rank for rank in ranks)


def gpus_of(allocations: Iterable[Fields]) -> int:
    """GPUs and parts of GPUs: the processes that a launcher starts in the member."""
    return sum(
        str(result.get("device")).startswith(_GPU_PREFIX)
        for allocation in allocations
        for result in (allocation.get("devices") or {}).get("results") or ()
    )
