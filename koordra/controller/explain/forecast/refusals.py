"""What kube-scheduler refused lately, from the Events about pods: for as long as those say, a node is left
out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from koordra.api.objects import Object
from koordra.controller.reporting import claim_events

_REFUSED: Final = re.compile(
    r"kube-scheduler refused node (?P<node>\S+): (?P<why>.*)\. \S+ is left out for (?P<pause>\d+) s"
)
Refusals = Mapping[str, Mapping[str, str]]
"""Pod uid -> node -> why kube-scheduler refused it there a moment ago."""


def refusals(events: Iterable[Object], now: datetime) -> Refusals:
    """The nodes that are left out at this moment."""
    found: dict[str, dict[str, str]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("reason") != claim_events.ALLOCATION_REFUSED or about.get("kind") != "Pod":
            continue
        text = _REFUSED.search(str(event.get("message") or ""))
        seen = (event.get("series") or {}).get("lastObservedTime")
        seen = seen or event.get("lastTimestamp") or event.get("eventTime")
        if text is None or not seen:
            continue
        if datetime.fromisoformat(str(seen)) + timedelta(seconds=int(text["pause"])) > now:
            found.setdefault(str(about.get("uid")), {})[text["node"]] = text["why"]
    return found
