"""Which replica of a job a pod belongs to, where each replica is a gang of its own. Pure.

`koordra.io/gang-by: <label>[,...]`: pods for which these labels (or annotations) say the same are one gang of
the name that they bear. `<label>:<size>` counts in blocks: a completion index of 19 is in block 2 of 8. The
word `none` is the whole job, also where a kind has a default:

    LeaderWorkerSet   by group-index, unless gang-min is more than a group has (size)
    RayCluster        workers of several hosts (numOfHosts) by worker group and replica-index; not those of
                      one host, which are numbered too, nor the head

There is none for a JobSet: its job-index is counted anew in every replicatedJob, and by job-key jobs that
talk to each other would be apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.controller.gangs.declared.annotations import GANG_BY, GANG_MIN, whole_number
from koordra.controller.gangs.declared.workload_kind import kind_of, told

WHOLE: Final = "none"
MOST_LABELS: Final = 4
_WANTED: Final = re.compile(
    r"\s*(?P<label>(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)"
    r"(?::(?P<block>[1-9][0-9]{0,5}))?\s*"
)
_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Replica(NamedTuple):
    """`values` of the labels, none for the whole job. `invalid`: why the annotation cannot be meant;
    `missing`: what the pod does not say, or not yet: labels may be added after koordra's webhook saw it."""

    values: tuple[str, ...] = ()
    invalid: str = ""
    missing: str = ""


def replica_of(pod: Mapping[str, Any], *, default: bool) -> Replica:
    """`default`: whether the kind's own rule counts where the pod says nothing."""
    said = objects.annotations_of(pod).get(GANG_BY)
    if said is None:
        return Replica(_by_default(pod) if default else ())
    if said.strip() == WHOLE:
        return Replica()
    labels = said.split(",")
    if len(labels) > MOST_LABELS:
        return Replica(invalid=f"{GANG_BY} names {len(labels)} labels: {MOST_LABELS} at most")
    wanted = [_WANTED.fullmatch(label) for label in labels]
    if None in wanted:
        wrong = labels[wanted.index(None)].strip()
        better = f"write {WHOLE}, or labels with commas between them, each with a block size or not (rank:8)"
        return Replica(invalid=f"{GANG_BY} says {wrong[:60]!r}: {better}")
    values = []
    for label, block in (one.group("label", "block") for one in wanted if one is not None):
        value = told(pod, label)
        number = whole_number(value)
        if not _VALUE.fullmatch(value) or (block and number is None):
            what = f"has {value[:60]!r} there" if value else "has no such label"
            return Replica(missing=f"{GANG_BY} names {label}, and pod {objects.name(pod)} {what}")
        values.append(str((number or 0) // int(block)) if block else value)
    return Replica(tuple(values))


def _by_default(pod: Mapping[str, Any]) -> tuple[str, ...]:
    kind = kind_of(pod)
    if kind is None or not kind.replica or not told(pod, kind.replica_if):
        return ()
    if kind.replica_size:
        least, size = (
            whole_number(text)
            for text in (objects.annotations_of(pod).get(GANG_MIN, ""), told(pod, kind.replica_size))
        )
        if least is None or size is None or least > size:
            return ()
    values = tuple(told(pod, label) for label in kind.replica)
    return values if all(map(_VALUE.fullmatch, values)) else ()
