"""Who waits, those with the same trouble together, and what would make it fit."""

from __future__ import annotations

from typing import Final

from koordra.cli.cluster.claims import age
from koordra.cli.cluster.dashboard.markup import Html, joined, lines, link, page, tag, text
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.cli.cluster.dashboard.waiting import IN_GANGS, NEXT, NOT_PLANNED, Trouble, Workload
from koordra.controller.explain.forecast.later import Later

MOST_TROUBLES: Final = 100
MOST_WORKLOADS: Final = 20
"""Of one trouble that are named."""
_WORDS: Final = {
    NEXT: "would fit now",
    IN_GANGS: "gangs, which are placed as a whole",
    NOT_PLANNED: "not planned yet",
}


def waiting_page(snapshot: Snapshot) -> bytes:
    troubles = snapshot.troubles
    claims = sum(one.claims for one in troubles)
    more = len(troubles) - MOST_TROUBLES
    return page(
        "Waiting",
        tag("p", f"{claims:,} {'claim waits' if claims == 1 else 'claims wait'} for devices.", class_="faint")
        if troubles
        else tag("p", "No claim waits for devices.", class_="empty"),
        *(_trouble(one, snapshot) for one in troubles[:MOST_TROUBLES]),
        tag("p", f"{more:,} more reasons are not shown", class_="faint") if more > 0 else "",
        root="",
        at="Waiting",
        moment=snapshot.at,
        refresh=True,
    )


def _trouble(found: Trouble, snapshot: Snapshot) -> Html:
    number = f"{found.claims:,} {'claim' if found.claims == 1 else 'claims'}"
    more = len(found.workloads) - MOST_WORKLOADS
    return tag(
        "section",
        tag("h2", _WORDS.get(found.reason, found.reason), " ", tag("small", number)),
        tag("div", lines(found.told), class_="why") if found.told else "",
        tag("ul", *(tag("li", _workload(one, snapshot)) for one in found.workloads[:MOST_WORKLOADS])),
        tag("p", f"and {more:,} more workloads", class_="faint") if more > 0 else "",
        class_="card",
    )


def _workload(found: Workload, snapshot: Snapshot) -> Html:
    now, later = snapshot.at, _first(found, snapshot)
    first = link("", found.claims[0], "claim", *found.claims[0].split("/", 1))
    others = f" and {len(found.claims) - 1:,} more" if len(found.claims) > 1 else ""
    pods = joined(
        (link("", key.partition("/")[2], "pod", *key.split("/", 1)) for key in found.pods[:3]), ", "
    )
    left = len(found.pods) - 3
    return joined(
        (
            _who(found),
            f" in {found.namespace}, for {age(found.since, now)}: claim ",
            first,
            others,
            joined((" (pod ", pods, f" and {left:,} more" if left > 0 else "", ")")) if pods else "",
            tag("div", f"{_which(found)}{later}", class_="when") if later else "",
        )
    )


def _which(found: Workload) -> str:
    """Of its claims that is which fits first; those of a gang fit together."""
    return "of the first one " if len(found.claims) > 1 and not found.gang else ""


def _first(found: Workload, snapshot: Snapshot) -> Later | None:
    """Of its claims the one that fits first; of a gang, which is placed as a whole, any."""
    known = [snapshot.later[key] for key in found.claims if key in snapshot.later]
    return min(known, key=lambda one: (one.at is None, one.at or 0.0), default=None)


def _who(found: Workload) -> Html:
    return link("", found.owner, "gang", *found.gang.split("/", 1)) if found.gang else text(found.owner)
