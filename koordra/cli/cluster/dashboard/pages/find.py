"""Nodes, claims, pods and gangs by a part of their names."""

from __future__ import annotations

from itertools import islice
from typing import Final

from koordra.cli.cluster.dashboard.markup import link, page, tag
from koordra.cli.cluster.dashboard.snapshot import Snapshot

MOST: Final = 100
"""Of each kind."""


def find_page(snapshot: Snapshot, words: str) -> bytes:
    view = snapshot.forecast.view
    cache = view.cache
    named = (("Nodes", "node", cache.nodes), ("Claims", "claim", cache.claims), ("Pods", "pod", cache.pods))
    found = [
        (title, what, list(islice((key for key in sorted(keys) if words in key), MOST)))
        for title, what, keys in (*named, ("Gangs", "gang", view.gangs))
    ]
    told = [
        tag("h2", title) + tag("ul", *(tag("li", link("./", key, what, *key.split("/", 1))) for key in keys))
        for title, what, keys in found
        if keys and words
    ]
    return page(
        "Find",
        *told,
        tag("p", f"Up to {MOST} of each kind are shown.", class_="faint")
        if any(len(keys) == MOST for _, _, keys in found)
        else "",
        "" if told else tag("p", f"Nothing has {words!r} in its name.", class_="empty"),
        root="",
        at="",
        moment=snapshot.at,
        search=words,
    )
