"""Watch streams: one JSON document a line, with bookmarks, selectors and an end.

A change of an object that starts or stops matching the selector is seen as ADDED or DELETED. A bookmark tells
a quiet watcher how far it has come, so that it can resume later without a new list. `sendInitialEvents`
streams the list first and marks its end with an annotated bookmark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from queue import Empty
from typing import Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.resources import Served
from koordra_devcluster.apiserver.serving import tables
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.selectors import Predicate
from koordra_devcluster.apiserver.storage.store import Change, Entry, Subscription, encode

BOOKMARK_PERIOD: Final = 30.0
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`as_table`: what rows carry (Metadata, Object, None), or "" for plain objects."""

    timeout: float
    bookmarks: bool = False
    initial_events: bool = False
    as_table: str = ""


def stream(
    served: Served,
    subscription: Subscription,
    selected: Predicate,
    options: WatchOptions,
    *,
    shown: Callable[[Entry], Entry],
    now: Callable[[], datetime],
) -> Iterator[bytes]:
    """The lines of one watch; b"" means "nothing yet, is the client still there?"."""
    frame = _Framer(served, options, shown, now)
    revision = subscription.revision
    with subscription:
        for change in subscription:
            yield from frame.change(change, selected)
        if options.initial_events:
            yield frame.bookmark(revision, initial_end=True)
        deadline = time.monotonic() + options.timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                change_or_end = subscription.queue.get(timeout=min(left, BOOKMARK_PERIOD))
            except Empty:
                if time.monotonic() >= deadline:
                    break
                yield frame.bookmark(revision) if options.bookmarks else b""
                continue
            if change_or_end is None:
                return
            revision = change_or_end.revision
            yield from frame.change(change_or_end, selected)
        if options.bookmarks:
            yield frame.bookmark(revision)


def failed(refusal: Refusal) -> bytes:
    """The ERROR event that ends a watch which cannot begin."""
    return encode({"type": "ERROR", "object": refusal.to_status()}) + b"\n"


@dataclass(slots=True)
class _Framer:
    """Turns changes into event lines; a table's column definitions go out with its first event only."""

    served: Served
    options: WatchOptions
    shown: Callable[[Entry], Entry]
    now: Callable[[], datetime]
    headers: bool = True

    def change(self, change: Change, selected: Predicate) -> Iterator[bytes]:
        is_match = selected(change.new.object)
        was_match = change.old is not None and selected(change.old.object)
        if change.type == "DELETED" or (was_match and not is_match):
            if was_match:
                yield self._event("DELETED", change.new)
        elif is_match:
            yield self._event("MODIFIED" if was_match else "ADDED", change.new)

    def _event(self, type_: str, entry: Entry) -> bytes:
        shown = self.shown(entry)
        if not self.options.as_table:
            return b'{"type":"' + type_.encode() + b'","object":' + shown.encoded + b"}\n"
        obj = shown.object
        table = tables.table(
            self.served,
            [obj],
            self.now(),
            revision=obj["metadata"]["resourceVersion"],
            include=self.options.as_table,
            headers=self.headers,
        )
        self.headers = False
        return encode({"type": type_, "object": table}) + b"\n"

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        kind = self.served.kind
        obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"
