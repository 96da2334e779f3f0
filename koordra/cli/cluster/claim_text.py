"""What `koordra explain` says to people of a claim. Lines fit 80 columns where the names in them allow it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from koordra.allocator.explain.cost_terms import (
    CLAIM_TERMS,
    EXPECTED_WASTE,
    NAME,
    SCORING_STRATEGY,
    SOFT_TAINTS,
    TERMS,
)
from koordra.api.objects import Fields
from koordra.cli.cluster.device_text import device_text
from koordra.cli.output import render_table
from koordra.controller.reporting import claim_events
from koordra.inert import inert

WIDTH: Final = 78
"""Two blanks less than 80: a claim is told within its pod, too."""
_TERMS: Final = {
    "relaxation": ("Preferred scopes widened by (levels)", 10**11),
    "alternatives": ("steps down in firstAvailable", 10**9),
    "nearness": ("distance of GPUs and NICs (steps)", 10**6),
    "nvlink": ("NVLink lacking between GPUs (halves)", 5 * 10**4),
    "compactness": ("GPUs spread over switches, NUMA nodes", 10**4),
    "brokenGroups": ("free GPUs in switch groups broken up", 10),
    "destroyedPlaces": ("places for MIG slices lost (1/1000)", 1),
    "leftover": ("left free on card and node (1/1000)", 1),
}
"""What a term counts, and its weight in the written cost."""
_DECIDES: Final = {
    SOFT_TAINTS: "taints by which its pods prefer other nodes (PreferNoSchedule)",
    SCORING_STRATEGY: "how full it is, by weight",
    EXPECTED_WASTE: "what it is expected to leave unusable",
}
_MOST_PODS: Final = 8


def claim_text(entry: Fields, *, wide: bool = False) -> str:
    return "\n".join(claim_lines(entry, wide=wide))


def wrapped(text: str, indent: int) -> list[str]:
    """Names are longer than words and are not broken."""
    return textwrap.wrap(
        inert(text),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def claim_lines(entry: Fields, *, wide: bool) -> Iterator[str]:
    name = f"{entry['namespace']}/{entry['name']}"
    match entry["status"]:
        case "Fits":
            fits = "would fit" if entry.get("waits") else "fits"
            yield from wrapped(f"{name} {fits} on {entry['node']}{_near(entry)}", 0)
        case "DoesNotFit":
            yield inert(f"{name} does not fit")
            yield from told_lines(entry["told"], 2)
        case "Undecided":
            yield inert(f"{name} is undecided")
            yield from told_lines(entry["told"], 2)
        case "Foreign":
            yield from wrapped(f"{name} is not koordra's", 0)
        case status:
            yield from wrapped(f"{name}: {status} on {entry['node'] or 'several nodes'}{_near(entry)}", 0)
            yield from _allocated(entry, wide=wide)
    yield from _last_words(entry)


def _near(entry: Fields) -> str:
    return f", GPU and NIC at level {entry['level']}" if entry["level"] else ""


def _last_words(entry: Fields) -> Iterator[str]:
    if entry.get("waits"):
        yield from wrapped(f"{'but' if entry['status'] == 'Fits' else 'besides,'} {entry['waits']}", 2)
    if entry.get("later"):
        yield from wrapped(entry["later"]["told"], 2)
    for question in entry.get("doubts", ()):
        yield from wrapped(question, 2)
    yield from last_word(entry, 2)


def last_word(entry: Fields, indent: int) -> Iterator[str]:
    """The controller's; that it allocated is seen, and what is told above is not told twice."""
    said = entry.get("controller")
    if not said or said.startswith(f"{claim_events.ALLOCATED}:"):
        return
    waits = entry.get("waits") or ""
    told = [f"{one['reason']}:" in said and one["detail"] in said for one in entry.get("reasons", ())]
    if not any(told) and not (waits and waits.partition(": ")[2] in said):
        yield from wrapped(f"the controller said last: {said}", indent)


def told_lines(told: Sequence[str], indent: int) -> Iterator[str]:
    """Reasons in their own lines, which may be indented already."""
    for line in told:
        words = line.lstrip()
        yield from wrapped(words, indent + len(line) - len(words))


# claims that have devices


def _allocated(entry: Fields, *, wide: bool) -> Iterator[str]:
    pods = entry["pods"]
    if pods:
        more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
        yield from wrapped(f"used by pod {', '.join(pods[:_MOST_PODS])}{more}", 2)
    else:
        yield "  no pod uses it now"
    for result in entry["devices"]:
        yield from wrapped(device_text(result), 2)
    if entry["placement"]:
        yield from _why(entry, entry["placement"], wide=wide)
    yield from _isolation(entry["isolation"])
    if found := entry.get("resized"):
        yield from wrapped(f"changed while it runs: {'; '.join([*found['limits'], *found['held']])}", 2)
        if found["refused"]:
            yield from wrapped(f"its last wish is not granted: {found['refused']}", 4)


def _why(entry: Fields, placement: Fields, *, wide: bool) -> Iterator[str]:
    if not placement["judged"]:
        why = placement.get("problem") or "the claim could not get these devices any more"
        yield from wrapped(f"why here: cannot be told now: {why}", 2)
        return
    here, other = placement["terms"], placement["next"]
    if other is None:
        yield from wrapped("why here: no other node could take it now", 2)
        yield from told_lines(placement["told"], 4)
        return
    yield from wrapped(f"why here: {_decision(entry, placement)}", 2)
    shown = [term for term in TERMS if wide or here[term] or other["terms"][term]]
    rows = [
        (_TERMS[term][0], _figure(term, here[term]), _figure(term, other["terms"][term]), mark)
        for term in shown
        for mark in ["decides" if term == placement["decidedBy"] else ""]
    ]
    rows += _scoring_rows(placement)
    if rows:
        table = render_table(("", str(entry["node"]), other["node"], ""), rows)
        yield from (f"    {line}".rstrip() for line in table.splitlines())


def _scoring_rows(placement: Fields) -> Iterator[tuple[str, str, str, str]]:
    """How full both nodes are, by resource with a weight; a node that has none of it is not measured."""
    here, other = (of.get("scoring") for of in (placement, placement["next"]))
    if not here or not other:
        return
    decides = "decides" if placement["decidedBy"] == SCORING_STRATEGY else ""
    yield ("scoring, by weight (1/1000)", str(here["cost"]), str(other["cost"]), decides)
    for name in dict.fromkeys((*here["full"], *other["full"])):
        mine, theirs = (str(of["full"].get(name, "-")) for of in (here, other))
        yield (f"  {name} in use (1/1000)", mine, theirs, "")


def _decision(entry: Fields, placement: Fields) -> str:
    node, term = placement["next"]["node"], placement["decidedBy"]
    if term == NAME:
        return f"{node} would be as good; of equals the node is taken that is named first"
    by = _DECIDES.get(term) or _TERMS[term][0]
    if placement["nextIsBetter"]:
        return f"it was the best when it was placed; now {node} would be better, by: {by}"
    return f"{node} is the next best and loses by: {by}"


def _figure(term: str, cost: int) -> str:
    """In the term's own unit, of which a tie-break under another policy is less than one."""
    unit = _TERMS[term][1]
    return f"{cost // unit}" if term not in CLAIM_TERMS or cost % unit == 0 else f"{cost}/{unit}"


def _isolation(devices: Sequence[Fields]) -> Iterator[str]:
    """Devices that are kept alike are told together."""
    told: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for one in devices:
        said = [
            f"{each['type']}: {each['status']} ({each['reason']}): {each['message']}"
            for each in one["conditions"]
        ]
        words = tuple(filter(None, [one["isolation"]]))
        key = (
            words,
            tuple(one.get("auto", ())),
            tuple(one["enforced"]),
            tuple(one["accounted"]),
            tuple(said),
        )
        told.setdefault(key, []).append(one["device"])
    if told:
        yield "  isolation"
    for (words, order, enforced, accounted, conditions), names in told.items():
        why = f": Auto, the first of {', '.join(order)} that the node has" if order else ""
        backend = f" (isolation {words[0]}{why})" if words and (order or words[0] != "none") else ""
        yield from wrapped(f"{', '.join(names)}{backend}", 4)
        for title, lines in (
            ("enforced", enforced),
            ("only accounted for", accounted),
        ):
            if lines:
                yield from wrapped(f"{title}: {'; '.join(lines)}", 6)
        for line in conditions:
            yield from wrapped(f"condition {line}", 6)
