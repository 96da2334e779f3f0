"""The files in which the members of a gang read what it is now. Pure: from what the API says of the members
alone, so a controller that starts anew comes to the same words.

    gate.koordra.io/gang-hosts     `host slots=gpus` for each member that has GPUs, by rank
    gate.koordra.io/gang-running   `host:gpus` for those of them that run, by rank: as Horovod's discovery
                                   scripts say it
    gate.koordra.io/gang-env       assignments that a shell reads, of variables as containers have them

Whose volumes show none of these annotations is told nothing. An object may have 256 KiB of annotations, and
what is told to all members grows with the square of their number. Where it is too much, hosts are left
out whole: those with devices first, beginning with the last rank, and the third file says so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.downward import shown_annotations
from koordra.controller.gangs.declared.annotations import (
    LIVE_DIGEST,
    LIVE_ENV,
    LIVE_FILES,
    LIVE_HOSTS,
    LIVE_RUNNING,
)
from koordra.controller.gangs.live.ranks import known_ranks, told_to
from koordra.controller.gangs.membership import Gang, Member
from koordra.node_state.claim_ref import environment_name
from koordra.placement.gang import gpus_of

MOST_OF_POD: Final = 240 << 10
"""Bytes in one pod; the API server takes 256 KiB of annotations."""
MOST_OF_GANG: Final = 16 << 20
"""Bytes in all pods of a gang."""
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A member that has its devices. `domains`: names by level."""

    rank: int
    host: str
    gpus: int
    runs: bool
    domains: Fields


def readers_of(gang: Gang) -> dict[str, frozenset[str]]:
    """By uid, the files of the members that have some."""
    found = {}
    for member in gang.members:
        if objects.spec_of(member.pod).get("volumes"):
            files = frozenset(shown_annotations(member.pod)).intersection(LIVE_FILES)
            if files:
                found[member.uid] = files
    return found


def texts_of(
    gang: Gang, readers: Mapping[str, Collection[str]], *, starting: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """By uid, the annotations of each reader, the digest included. `starting`: uids of members that are let
    go with this."""
    ranks = known_ranks(gang)
    placed = {
        member.uid: _placed(member, ranks[member.uid])
        for member in gang.members
        if member.uid in ranks and member.is_placed and (member.is_committed or member.uid in starting)
    }
    by_rank = sorted(placed.values(), key=lambda one: (one.rank, one.host))
    with_gpus = [one for one in by_rank if one.gpus]
    hosts = {
        LIVE_HOSTS: "".join(f"{one.host} slots={one.gpus}\n" for one in with_gpus),
        LIVE_RUNNING: "".join(f"{one.host}:{one.gpus}\n" for one in with_gpus if one.runs),
    }
    shared = _shared(by_rank)
    first, last = (-1, ""), (len(ranks), "")
    order = {
        uid: (ranks.get(uid, last[0]), uid) if uid in placed and placed[uid].gpus else first
        for uid in readers
    }
    room, found = MOST_OF_GANG, dict[str, dict[str, str]]()
    for uid in sorted(readers, key=lambda one: (order[one], one)):
        told = {name: hosts[name] for name in sorted(readers[uid]) if name in hosts}
        size = sum(map(len, told.values()))
        is_left_out = size > min(room, MOST_OF_POD)
        if is_left_out:
            told = dict.fromkeys(told, "")
        else:
            room -= size
        if LIVE_ENV in readers[uid]:
            said = {
                "KOORDRA_GANG": gang.ref.name,
                "KOORDRA_GANG_SIZE": str(len(by_rank)),
                **({"KOORDRA_RANK": str(ranks[uid])} if uid in placed else {}),
                **({"KOORDRA_LEADER": by_rank[0].host} if by_rank else {}),
                **({"KOORDRA_HOSTS_LEFT_OUT": str(len(with_gpus))} if is_left_out else {}),
            }
            own = placed[uid].domains if uid in placed else {}
            told[LIVE_ENV] = _as_shell(said, own or shared)
        found[uid] = {**told, LIVE_DIGEST: _digest(told)}
    return found


def host_of(pod: Object) -> str:
    """The name by which other members resolve the pod."""
    spec = objects.spec_of(pod)
    name = str(spec.get("hostname") or objects.name(pod))
    return f"{name}.{spec['subdomain']}" if spec.get("subdomain") else name


def _placed(member: Member, rank: int) -> _Placed:
    runs = member.is_bound and objects.status_of(member.pod).get("phase") == "Running"
    gpus = gpus_of(claims_of.allocation(claim) or {} for claim in member.ours)
    return _Placed(rank, host_of(member.pod), gpus, runs, objects.fields(told_to(member).get("domains")))


def _shared(members: list[_Placed]) -> Fields:
    """The domains in which all are that are in any."""
    known = [one.domains for one in members if one.domains]
    if not known:
        return {}
    return {
        level: name for level, name in known[0].items() if all(one.get(level) == name for one in known[1:])
    }


def _as_shell(said: Mapping[str, str], domains: Fields) -> str:
    levels = {f"KOORDRA_{environment_name(level)}": str(name) for level, name in sorted(domains.items())}
    variables = {**levels, **said}
    return "".join(
        f"{name}={shlex.quote(value)}\n" for name, value in variables.items() if _VARIABLE.fullmatch(name)
    )


def _digest(told: Mapping[str, str]) -> str:
    words = "\0".join(f"{name}\0{text}" for name, text in sorted(told.items()))
    return sha256(words.encode()).hexdigest()[:16]
