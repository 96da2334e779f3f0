"""How commands reach a cluster's API server, what they read of it, and how they follow it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import Final, NamedTuple

from koordra import logs
from koordra.api import kinds
from koordra.api.objects import Object
from koordra.cli.options import Access, Scope
from koordra.cli.progress import progress
from koordra.errors import Forbidden, InvalidInput, NotFound
from koordra.inert import inert
from koordra.kube.client import PAGE, KubeClient
from koordra.kube.watch import WatchCache, start_watches
from koordra.process.lifecycle import spawn


def connect(access: Access) -> KubeClient:
    """A client that speaks the server's version of resource.k8s.io."""
    from koordra.kube.kubeconfig import new_client

    client = new_client(access.kubeconfig, context=access.context, user_agent="koordra-cli")
    client.negotiate()
    return client


def namespace_of(access: Access, scope: Scope) -> str | None:
    """The one namespace that is meant; None for all. Raises InvalidInput, and InvalidManifest."""
    from koordra.kube import kubeconfig

    if scope.everywhere:
        if scope.namespace is not None:
            raise InvalidInput("exclude each other", object="-n and -A", remedy="give one of them")
        return None
    if scope.namespace is not None:
        return scope.namespace
    return kubeconfig.namespace_of(access.kubeconfig, context=access.context)


@dataclass(frozen=True, slots=True)
class Source:
    """Objects of one kind that a command shows. `optional`: it does without them where they may not be
    read."""

    kind: kinds.Kind
    namespace: str | None = None
    selector: str = ""
    fields: str = ""
    optional: bool = False


DEVICES: Final = (
    Source(kinds.RESOURCE_SLICES),
    Source(kinds.RESOURCE_CLAIMS),
    Source(kinds.DEVICE_TAINT_RULES, optional=True),
    Source(kinds.DEVICE_HOLDS, optional=True),
)
"""With the Nodes: which devices there are and who has them, of joint and native nodes alike."""

Listed = Mapping[kinds.Kind, list[Object]]

AHEAD: Final = 8
"""Pages that are read and not yet taken in, at most."""
GATHER: Final = 0.2
"""Seconds in which changes that come together are shown as one."""


def listed(client: KubeClient, sources: Sequence[Source]) -> Listed:
    """Everything that the sources have now."""
    found: dict[kinds.Kind, list[Object]] = {}
    for one in sources:
        found[one.kind] = _items(client, one)
    return found


def _items(
    client: KubeClient, source: Source, each: Callable[[Object], Object] = lambda obj: obj
) -> list[Object]:
    try:
        return client.list(
            source.kind,
            namespace=source.namespace,
            label_selector=source.selector,
            field_selector=source.fields,
            each=each,
        )[0]
    except (NotFound, Forbidden):
        if not source.optional:
            raise
        return []


class Piece(NamedTuple):
    """Objects of one kind that were just read. `every`: with the last ones, all that there are, which may
    leave out some of earlier pieces."""

    kind: kinds.Kind
    objects: list[Object]
    every: list[Object] | None = None


def read_ahead(
    client: KubeClient, sources: Sequence[Source], *, trim: Callable[[kinds.Kind], Callable[[Object], Object]]
) -> Iterator[Piece]:
    """Everything that the sources have now, source by source, while a thread waits for what comes next, a few
    pages ahead. `trim`: what is kept of an object of the kind."""
    ready = Queue[Piece | Exception | None](AHEAD)

    def read(source: Source) -> None:
        piece, kept = list[Object](), trim(source.kind)

        def each(obj: Object) -> Object:
            nonlocal piece
            found = kept(obj)
            piece.append(found)
            if len(piece) == PAGE:
                ready.put(Piece(source.kind, piece))
                piece = []
            return found

        every = _items(client, source, each)
        ready.put(Piece(source.kind, piece, every))

    def run() -> None:
        try:
            for source in sources:
                read(source)
            ready.put(None)
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            ready.put(error)

    spawn(run, name="read-cluster")
    while (found := ready.get()) is not None:
        if isinstance(found, Exception):
            raise found
        yield found


def _read(client: KubeClient, sources: Sequence[Source]) -> Listed:
    with progress("reading the cluster", line=False):
        return listed(client, sources)


def listed_once(client: KubeClient, sources: Sequence[Source]) -> Iterator[Listed]:
    yield _read(client, sources)


def followed(client: KubeClient, sources: Sequence[Source]) -> Iterator[Listed]:
    """Everything that the sources have, and again after every change, until Ctrl-C."""
    first = _read(client, sources)
    yield first
    logs.configure(level="warning")
    stop, changed = threading.Event(), threading.Event()
    caches = {
        one.kind: WatchCache(
            client,
            one.kind,
            namespace=one.namespace,
            label_selector=one.selector,
            on_change=lambda _event, _obj: changed.set(),
        )
        for one in sources
        if first[one.kind] or not one.optional
    }
    try:
        start_watches(caches.values(), stop)
        while True:
            changed.wait()
            stop.wait(GATHER)
            changed.clear()
            yield {one.kind: caches[one.kind].objects() if one.kind in caches else [] for one in sources}
    finally:
        stop.set()


def latest_events(events: Iterable[Object]) -> dict[str, str]:
    """Object uid -> the newest thing that koordra's controller said about it."""
    newest: dict[str, tuple[str, str]] = {}
    for event in events:
        if (event.get("source") or {}).get("component") != "koordra-controller":
            continue
        uid = str((event.get("involvedObject") or {}).get("uid"))
        said = (
            str(event.get("lastTimestamp") or ""),
            inert(f"{event.get('reason')}: {event.get('message')}"),
        )
        newest[uid] = max(said, newest.get(uid, ("", "")))
    return {uid: text for uid, (_, text) in newest.items()}
