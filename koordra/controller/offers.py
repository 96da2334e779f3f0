"""Asking the allocator, site by site, and not asking the same thing twice.

The allocator's answer for one node depends on the request and on that node alone, so

    request class   what a group asks, without names and uids: claims of one template, say
    likeness        sites with the same devices, of which the same is taken, have the same answer (sites.py): the
                    allocator is asked once per class and likeness, and its answer is written anew for other names
    book            per class: each site's score, or that it does not fit, and the site's version that holds for
    best            only sites that changed since are looked at; then the best score, where it is the leftover that differs
                    by what was learned of the workload (leftovers.py), ties by the node's name

So a claim of a known class costs no question or one to the allocator, however many nodes there are, and one that
fits nowhere costs none until a site changes. `koordra.allocator.plan` over all sites would answer the same; a test
compares (as long as nothing was learned). Why a claim waits is asked for only when it is told, once for every kind of site and for MOST_TOLD
sites at most; `koordra explain` tells all.

The predicates of nodes (allocator.predicates) are judged here, pod by pod, against what the site's pods ask.

Nodes that a pod is kept off (refused by the scheduler, reserved for somebody, pod-level obstacles) are left out
of the choice with the reason given; they are no part of a class.
"""

from __future__ import annotations

import heapq
import json
import re
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from koordra.allocator.inventory import Inventory as InventoryOfAllocator
from koordra.allocator.offer import share_id
from koordra.allocator.predicates import requests_of, unsuitable
from koordra.allocator.reasons import Cause, Reason, told_in_order
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.leftovers import WORTH, Learned, Leftovers
from koordra.controller.sites import IDENTITIES, Inventory, Site, Sites, add_load
from koordra.controller.snapshot import Cluster, Group
from koordra.errors import InvalidInput, KoordraError, SelectorError

MOST_CLASSES: Final = 128
"""Request classes that are remembered; the one that was not asked for the longest goes first."""

MOST_EXEMPLARS: Final = 50_000
MOST_TOLD: Final = 24
"""Sites that an Event is made from; it has room for fewer."""

_SPEAKS_OF_ONE: Final = re.compile("|".join(sorted(IDENTITIES)))
"""Requests that name an identity of single devices get no shared answers."""

KeptOff = Mapping[str, Reason]
"""Node -> why the group must stay off it."""

Reasons = tuple[Reason, ...]

_Order = tuple[int, int, int]
"""Smaller is better."""


class Plan(Protocol):
    """What the allocator answers; koordra.allocator.Plan is one."""

    @property
    def allocations(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def unsatisfiable(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def undecided(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def levels(self) -> Mapping[str, str | None]: ...

    @property
    def scores(self) -> Mapping[str, int]: ...


class Planner(Protocol):
    """`koordra.allocator.plan`. Raises PlanError or InvalidInput for input that cannot be meant."""

    def __call__(
        self, objects: Iterable[Any], *, report_errors: bool = False, inventory: Inventory = None
    ) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What one site said. `reasons` are per claim, in the order of the group's pending claims."""

    score: int | None = None
    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: tuple[Reasons, ...] = ()
    undecided: bool = False
    broken: str = ""


@dataclass(frozen=True, slots=True)
class _Exemplar:
    """An answer of the allocator, and the group and node that it was given for."""

    answer: Answer
    group: Group
    node: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a book knows of a site: the answer's exemplar, or why the node itself is unsuitable."""

    version: int
    exemplar: _Exemplar | None = None
    unsuitable: Reasons = ()

    @property
    def score(self) -> int | None:
        return None if self.exemplar is None else self.exemplar.answer.score


@dataclass(slots=True)
class _Book:
    """One request class. `read`: how many of the sites' changes are in it; `told`: why nothing fits, with the keys
    that it speaks of."""

    read: int = 0
    entries: dict[str, _Entry] = field(default_factory=dict)
    best: list[tuple[_Order, str, int]] = field(default_factory=list)
    epoch: int = 0
    told: tuple[tuple[Reasons, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """The best place for a group, or why there is none (`reasons` by claim key)."""

    node: str | None = None
    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    undecided: bool = False
    broken: str = ""


class Offers:
    """The allocator with a memory. Not thread-safe. `asked` counts questions to the allocator."""

    def __init__(
        self,
        planner: Planner,
        read_inventory: Callable[[Iterable[Object]], Inventory],
        *,
        learned: Learned | None = None,
    ) -> None:
        self._planner = planner
        self.leftovers = Leftovers(learned)
        self.sites = Sites(read_inventory)
        self.asked = 0
        self._books: dict[str, _Book] = {}
        self._exemplars: dict[tuple[str, Hashable], _Exemplar] = {}
        self._classes: Mapping[str, Object] = {}
        self._seen_classes: Sequence[Object] = ()

    def look(self, cluster: Cluster) -> None:
        """Everything as it is at the beginning of a pass."""
        self.sites.look(cluster)
        classes = cluster.classes
        if classes is not self._seen_classes and list(classes) != list(self._seen_classes):
            self._forget()
        self._classes, self._seen_classes = cluster.classes_by_name, classes
        if len(self.sites.changes) > 1_000_000 or len(self._exemplars) > MOST_EXEMPLARS:
            self._forget()
            self.sites.changes.clear()
        self.leftovers.follow(self.sites)

    def given_out(self, claim: Object, pods: Iterable[Object]) -> None:
        self.sites.given_out(claim, pods)

    def best(self, group: Group, kept_off: KeptOff) -> Offered:
        """The group as a whole on the best node, or nowhere."""
        placed = group.placed
        if placed:
            return self._beside(placed, group, kept_off)
        kind = request_class(group)
        self.leftovers.follow(self.sites)
        self.leftovers.heard(kind, group, self._classes)
        book = self._book(kind)
        self._bring_up_to_date(book, kind, group)
        found = _best_of(book, kept_off)
        if found is None:
            return self._nowhere_by_book(group, book, kept_off)
        exemplar = book.entries[found].exemplar
        assert exemplar is not None
        if exemplar.node == found and exemplar.group is group:
            return Offered(found, exemplar.answer.allocations, exemplar.answer.levels)
        return _for_other_names(exemplar, group, found)

    def ask(self, group: Group, site: Site, *, without: frozenset[str] = frozenset()) -> Answer:
        """One site's answer. `without`: uids of claims and pods there as if they were gone."""
        unsuited = self._unsuitable(group, site, without)
        if unsuited:
            return Answer(reasons=tuple(unsuited for _ in group.pending))
        return self._of_allocator(group, site, without)

    def _of_allocator(self, group: Group, site: Site, without: frozenset[str] = frozenset()) -> Answer:
        keys = [objects.key(claim) for claim in group.pending]
        self.asked += 1
        try:
            shown = self._shown(group, site, without)
            found = self._planner(shown, report_errors=True, inventory=self.sites.inventory_of(site))
        except KoordraError as error:
            return _refused(keys, error)
        except Exception as error:  # noqa: BLE001 (a defect met by one claim must not stop the others)
            text = f"{type(error).__name__} inside the allocator: {error}; please report it"
            reason = Reason(site.name, None, None, "InternalError", text)
            return Answer(reasons=tuple((reason,) for _ in keys), broken=traceback.format_exc())
        if keys and all(key in found.allocations for key in keys):
            return Answer(
                score=found.scores[keys[0]],
                allocations={key: found.allocations[key] for key in keys},
                levels={key: found.levels.get(key) for key in keys},
            )
        unread = self._unreadable(site)
        return Answer(
            reasons=tuple(
                (*unread, *(found.unsatisfiable.get(key) or found.undecided.get(key) or ())) for key in keys
            ),
            undecided=not found.undecided.keys().isdisjoint(keys),
        )

    def _unreadable(self, site: Site) -> Reasons:
        """Slices of the node that cannot be read; its devices look as if they were not there."""
        if not isinstance(site.inventory, InventoryOfAllocator):
            return ()
        texts = [text for by_slice in site.inventory.unreadable.values() for text in by_slice.values()]
        return tuple(
            Reason(site.name, None, None, Cause.POOL_INCOMPLETE.value, text) for text in sorted(texts)
        )

    def _shown(self, group: Group, site: Site, without: frozenset[str]) -> list[Object]:
        """What the allocator is shown: one node, its holders, and the group without the claims of others."""
        inside = {objects.key(claim): claim for claim in (*group.pending, *group.placed)}
        here = {objects.uid(claim) for claim in site.holders} - without
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        return [
            *site.shown(without=without),
            *(self._classes[name] for name in sorted(named) if name in self._classes),
            *(claim for claim in inside.values() if objects.uid(claim) not in here),
            *(with_claims(pod, shown=inside) for pod in group.pods),
        ]

    def _unsuitable(self, group: Group, site: Site, without: frozenset[str]) -> Reasons:
        """The node's predicates for all pods of the group at the same time."""
        mine = frozenset(objects.uid(pod) for pod in group.pods) if group.placed else frozenset()
        load = site.load_without(without | mine)
        found: list[str] = []
        for pod in group.pods:
            several = len(group.pods) > 1
            where = f"pod {objects.key(pod)}: " if several else ""
            found += [f"{where}{text}" for text in unsuitable(site.node, pod, taken=load)]
            if several:
                add_load(load, requests_of(pod))
        cause = Cause.NODE_UNSUITABLE.value
        return tuple(Reason(site.name, None, None, cause, text) for text in dict.fromkeys(found))

    # books

    def _forget(self) -> None:
        self._books.clear()
        self._exemplars.clear()
        self.leftovers.forget_classes()

    def _book(self, kind: str) -> _Book:
        book = self._books.pop(kind, None) or _Book()
        if len(self._books) >= MOST_CLASSES:
            del self._books[next(iter(self._books))]
        self._books[kind] = book
        return book

    def _bring_up_to_date(self, book: _Book, kind: str, group: Group) -> None:
        changes = self.sites.changes
        stale = set(changes[book.read :]) if book.entries else set(self.sites.by_name)
        book.read = len(changes)
        for name in sorted(stale):
            site = self.sites.by_name.get(name)
            known = book.entries.get(name)
            if site is None:
                book.entries.pop(name, None)
            elif known is None or known.version != site.version:
                entry = book.entries[name] = self._entry(kind, group, site)
                if entry.score is not None and book.epoch == self.leftovers.epoch:
                    heapq.heappush(
                        book.best, (self._order(kind, group, site, entry.score), name, site.version)
                    )
            book.told = None
        if book.epoch != self.leftovers.epoch:
            book.epoch = self.leftovers.epoch
            book.best = [
                (self._order(kind, group, self.sites.by_name[name], entry.score), name, entry.version)
                for name, entry in book.entries.items()
                if entry.score is not None
            ]
            heapq.heapify(book.best)

    def _order(self, kind: str, group: Group, site: Site, score: int) -> _Order:
        """What the site's answer is worth to the claims, what it leaves of the cluster, and the rest of the score."""
        return -score // WORTH, self.leftovers.key(kind, group, site, self._classes), -score

    def _entry(self, kind: str, group: Group, site: Site) -> _Entry:
        unsuited = self._unsuitable(group, site, frozenset())
        if unsuited:
            return _Entry(site.version, unsuitable=unsuited)
        shared = site.likeness is not None and not _SPEAKS_OF_ONE.search(self._words(kind, group))
        place = (kind, site.likeness)
        exemplar = self._exemplars.get(place) if shared else None
        if exemplar is None:
            exemplar = _Exemplar(self._of_allocator(group, site), group, site.name)
            if shared and not exemplar.answer.broken:
                self._exemplars[place] = exemplar
        return _Entry(site.version, exemplar)

    def _words(self, kind: str, group: Group) -> str:
        """Everything that is said in a request: the claims' own words and their classes'."""
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        return kind + "".join(
            str(objects.spec_of(self._classes[name])) for name in sorted(named) if name in self._classes
        )

    # why not

    def _nowhere_by_book(self, group: Group, book: _Book, kept_off: KeptOff) -> Offered:
        keys, names = [objects.key(claim) for claim in group.pending], _names(group)
        if not kept_off and book.told is not None:
            told = _renamed(book.told[0], book.told[1], names)
            return Offered(reasons=_spread(dict(zip(keys, told, strict=True))))
        answers = self._reasons_by_book(group, book, kept_off)
        offered = self._nowhere(group, answers, kept_off)
        if not kept_off and not offered.undecided and not offered.broken:
            merged = _merged(answers.values(), len(keys))
            book.told = (merged, names)
        return offered

    def _reasons_by_book(self, group: Group, book: _Book, kept_off: KeptOff) -> dict[str, Answer]:
        """The answers that tell most: every kind of site once."""
        answers: dict[str, Answer] = {}
        seen: set[int] = set()
        for name in sorted(book.entries):
            entry = book.entries[name]
            if name in kept_off or entry.score is not None or len(answers) >= MOST_TOLD:
                continue
            if entry.exemplar is None:
                answers[name] = Answer(reasons=tuple(entry.unsuitable for _ in group.pending))
            elif id(entry.exemplar) not in seen:
                seen.add(id(entry.exemplar))
                mine = entry.exemplar.node == name and entry.exemplar.group is group
                answers[name] = (
                    entry.exemplar.answer if mine else self._of_allocator(group, self.sites.by_name[name])
                )
        return answers

    def _beside(self, placed: Sequence[Object], group: Group, kept_off: KeptOff) -> Offered:
        """A part of the pods' claims is placed: only the node that these are on comes into question."""
        pinned = {node for claim in placed if (node := claims_of.node_of(claim)) is not None}
        names = sorted(pinned if len(pinned) == 1 else self.sites.by_name)
        answers = {
            name: self.ask(group, self.sites.by_name[name])
            for name in names
            if name in self.sites.by_name and name not in kept_off
        }
        fitting = [(-answer.score, name) for name, answer in answers.items() if answer.score is not None]
        if fitting:
            best = min(fitting)[1]
            return Offered(best, answers[best].allocations, answers[best].levels)
        if len(pinned) == 1 and not answers and not pinned & kept_off.keys():
            where = next(iter(pinned))
            keys = ", ".join(objects.key(claim) for claim in placed)
            text = f"ResourceClaim {keys} of the pod is allocated on node {where}, which is gone"
            reason = Reason(where, None, None, Cause.SHARED_CLAIM_PINNED.value, text)
            return Offered(reasons={objects.key(claim): (reason,) for claim in group.pending})
        relevant = {name: reason for name, reason in kept_off.items() if not pinned or name in pinned}
        return self._nowhere(group, answers, relevant)

    def _nowhere(self, group: Group, answers: Mapping[str, Answer], kept_off: KeptOff) -> Offered:
        keys = [objects.key(claim) for claim in group.pending]
        said = [answer for name, answer in answers.items() if name not in kept_off]
        kept = [Answer(reasons=tuple((reason,) for _ in keys)) for reason in kept_off.values()]
        told = _merged([*said, *kept], len(keys))
        return Offered(
            reasons=_spread(dict(zip(keys, told, strict=True))),
            undecided=any(answer.undecided for answer in said),
            broken=next((answer.broken for answer in said if answer.broken), ""),
        )


def _for_other_names(exemplar: _Exemplar, group: Group, node: str) -> Offered:
    """The exemplar's answer for another group of its class, on a node like its own: pools, node selectors and
    share ids are the only places where names go into an allocation."""
    allocations: dict[str, Mapping[str, Any]] = {}
    levels: dict[str, str | None] = {}
    for like, claim in zip(exemplar.group.pending, group.pending, strict=True):
        found = exemplar.answer.allocations[objects.key(like)]
        counts: dict[str, int] = {}
        results = []
        for result in found["devices"].get("results") or ():
            label = str(result["request"])
            index = counts[label] = counts.get(label, -1) + 1
            other = dict(result)
            if other.get("pool") == exemplar.node:
                other["pool"] = node
            if "shareID" in other:
                other["shareID"] = share_id(objects.uid(claim) or objects.key(claim), label, index)
            results.append(other)
        allocation = {**found, "devices": {**found["devices"], "results": results}}
        if "nodeSelector" in found:
            pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
        allocations[objects.key(claim)] = allocation
        levels[objects.key(claim)] = exemplar.answer.levels.get(objects.key(like))
    return Offered(node, allocations, levels)


def request_class(group: Group) -> str:
    """Everything about a group that a node's answer depends on, and nothing else."""
    position = {objects.key(claim): index for index, claim in enumerate(group.pending)}
    claims = [[objects.spec_of(claim), claims_of.is_immediate(claim)] for claim in group.pending]
    pods = []
    for pod in group.pods:
        spec = objects.spec_of(pod)
        uses = [
            position.get(f"{objects.namespace(pod)}/{name}") for name in objects.pod_claim_names(pod).values()
        ]
        pods.append([uses, _face(spec), objects.namespace(pod) if len(group.pods) > 1 else ""])
    return json.dumps([claims, pods], sort_keys=True, separators=(",", ":"))


_FACE: Final = ("nodeName", "nodeSelector", "tolerations", "overhead", "resources")


def _face(spec: Mapping[str, Any]) -> object:
    """What the node predicates read of a pod."""
    containers = [
        [[entry.get("resources"), entry.get("restartPolicy")] for entry in spec.get(place) or ()]
        for place in ("containers", "initContainers")
    ]
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    return [containers, node_affinity, [spec.get(name) for name in _FACE]]


def _best_of(book: _Book, kept_off: KeptOff) -> str | None:
    """The site with the best score whose answer is still good; what is kept off stays in the book."""
    aside = []
    found = None
    while book.best:
        entry = book.best[0]
        known = book.entries.get(entry[1])
        if known is None or known.version != entry[2] or known.score is None:
            heapq.heappop(book.best)
            continue
        if entry[1] not in kept_off:
            found = entry[1]
            break
        aside.append(heapq.heappop(book.best))
    for entry in aside:
        heapq.heappush(book.best, entry)
    return found


def _merged(answers: Iterable[Answer], number: int) -> tuple[Reasons, ...]:
    """All sites' reasons per claim, in the order in which they are told."""
    gathered: list[list[Reason]] = [[] for _ in range(number)]
    for answer in answers:
        for position, reasons in enumerate(answer.reasons):
            gathered[position] += reasons
    return tuple(told_in_order(reasons) for reasons in gathered)


def _names(group: Group) -> tuple[str, ...]:
    """The keys by which reasons may speak of a group's claims and pods."""
    return (*(objects.key(claim) for claim in group.pending), *(objects.key(pod) for pod in group.pods))


def _renamed(
    reasons: tuple[Reasons, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[Reasons, ...]:
    """Reasons that were worked out for one group of a class, in the words of another."""
    if before == after or len(before) != len(after):
        return reasons
    names = dict(zip(before, after, strict=True))
    if not any(name in reason.detail for told in reasons for reason in told for name in names):
        return reasons
    pattern = re.compile(
        r"(?<![\w./-])("
        + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        + r")(?![\w-])"
    )
    return tuple(
        tuple(
            replace(reason, detail=pattern.sub(lambda found: names[found.group()], reason.detail))
            for reason in told
        )
        for told in reasons
    )


def _refused(keys: Sequence[str], error: KoordraError) -> Answer:
    """The allocator's own reason where the error carries one; otherwise the nearest word for it."""
    own = getattr(error, "reason", None)
    if isinstance(own, Reason):
        reason = own
    else:
        word = Cause.SELECTOR_ERROR if isinstance(error, SelectorError) else Cause.CONSTRAINT_VIOLATED
        cause = word if isinstance(error, InvalidInput) else Cause.POOL_INCOMPLETE
        reason = Reason(None, None, None, cause.value, str(error))
    named = getattr(error, "claim", None)
    concerned = [key for key in keys if key == named] or list(keys)
    return Answer(reasons=tuple((reason,) if key in concerned else () for key in keys))


def _spread(reasons: Mapping[str, Reasons]) -> dict[str, Reasons]:
    """A claim without reasons of its own waits for its neighbours in the pod: it says so and names them."""
    if all(reasons.values()):
        return dict(reasons)
    stuck = sorted(key for key, given in reasons.items() if given)
    text = f"waits for {', '.join(stuck) or 'a node: there is none'}"
    waits = Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text)
    return {key: given or (waits,) for key, given in reasons.items()}


def waits_for_others(reasons: Mapping[str, Reasons]) -> dict[str, Reasons]:
    """The same rule for reasons that were found elsewhere."""
    return _spread(reasons)


def with_claims(pod: Object, *, shown: Mapping[str, Object]) -> Object:
    """The pod with only those entries of spec.resourceClaims whose claim is shown too."""
    found = objects.pod_claim_names(pod)
    kept = {
        entry
        for entry, name in found.items()
        if name is not None and f"{objects.namespace(pod)}/{name}" in shown
    }
    spec = dict(objects.spec_of(pod))
    if len(kept) == len(spec.get("resourceClaims") or ()):
        return pod
    spec["resourceClaims"] = [
        entry for entry in spec.get("resourceClaims") or () if entry.get("name") in kept
    ]
    return {**pod, "spec": spec}
