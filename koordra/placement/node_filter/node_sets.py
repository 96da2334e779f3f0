"""Which nodes a request may use at all, as small numbers: `Request.models`, `Request.nodes`, `Kind.sets`.

A request is kept off nodes by what its selectors say of devices (`admitted`) and by what its pods say of nodes: selectors, required
affinity, taints, cordons, readiness (`terms`, judged by `allocator.predicates`). Neither depends on what is free. So

    node ──▶ cell            nodes that differ in nothing that any request has read so far
    request ──▶ its words ──▶ one judgement per cell ──▶ the cells it may use
                                  ├──▶ models     of the GPUs that it may run on, where some are kept out
                                  └──▶ nodes      the number of that set of cells, where models do not say it all

`models` is knowledge about the workload, kept by name in the learned table. It follows from what stays: selectors, labels, taints
that somebody has set; not from cordons, a node that is not ready, the taints that Kubernetes sets itself, or tainted devices. If some
device of a model may serve, the model counts.

`nodes` is for now, in this process, and never learned. Set 0 is empty: what no node may serve is placed nowhere. There are MOST_SETS
numbers; when they are used up, the one that was not asked for the longest goes to the next set, if that is long enough ago,
otherwise the request counts as unrestricted and whoever asks the nodes hears no more often.

There are MOST_CELLS cells at most, made by MOST_READ labels. A label, or attribute of devices, that would make more (a serial
number) is not read: what says something about it counts as met. Where taints and amounts alone make more, the nodes that come last are
a crowd, one cell per model and size, that every request may use. A node's own name is no set either; `named` answers it by an index.

Three counters tell others what to make anew: `epoch`, if a request seen before may be another one now; `version`, if nodes have
other sets than before; `added`, if they have more sets, and everything that was said of the others holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from koordra.allocator.features import Features
from koordra.allocator.request.requests import KOORDRA_CLASSES, RequestAlternative, ResolvedClaim
from koordra.api import names, objects
from koordra.placement.columns.node_devices import NodeDevices
from koordra.placement.columns.state import Request
from koordra.placement.node_filter.cells import Cell, bare, seen_of, suits
from koordra.placement.node_filter.device_admission import (
    TOLD,
    Admits,
    Admitted,
    Published,
    names_of,
    published,
)
from koordra.placement.node_filter.pod_terms import HOSTNAME, Pod, labels_read, named, said_by, weakened

MOST_SETS: Final = 64
MOST_CELLS: Final = 1024
MOST_READ: Final = 64
"""Labels, and names of attributes, that nodes are told apart by."""

NOWHERE: Final = 0
"""The number of the empty set."""

_LONG_AGO: Final = 4096
"""Questions after which a set that nobody asked for may lose its number."""

_MOST_ANSWERS: Final = 8192

_CLASSES: Final = {
    names.TYPE_GPU: names.CLASS_GPU,
    names.TYPE_MIG: names.CLASS_MIG,
    names.TYPE_NIC: names.CLASS_NIC,
    names.TYPE_VF: names.CLASS_VF,
}

_Face = tuple[Hashable, ...]


class _Asked(NamedTuple):
    """`own`: only koordra's devices; `first` and `others`: the ways to satisfy the request, in order."""

    own: bool
    first: RequestAlternative
    others: tuple[RequestAlternative, ...]


@dataclass(slots=True)
class _Words:
    """One request's words with the judgements so far: of the first `judged` cells, as bits."""

    asked: tuple[_Asked, ...]
    pods: tuple[Pod, ...]
    judged: int = 0
    serving: int = 0
    lasting: int = 0


class NodeSets:
    """The nodes of one fleet. Not thread-safe."""

    def __init__(self, features: Features) -> None:
        self.epoch = self.version = self.added = 0
        self._admitted = Admitted(features)
        self._labels: frozenset[str] = frozenset()
        self._refused: frozenset[str] = frozenset()
        self._nodes: dict[str, tuple[NodeDevices, int]] = {}
        self._hosts: dict[str, str] = {}
        self._cells: list[Cell] = []
        self._at: dict[_Face, int] = {}
        self._words: dict[Hashable, _Words] = {}
        self._types: dict[object, tuple[int, frozenset[str]]] = {}
        self._answers: dict[Hashable, tuple[int, int, tuple[str, ...], int]] = {}
        self._owners: list[_Words | None] = [None]
        self._masks = [0]
        self._last = [0]
        self._questions = 0
        self._bits: dict[int, int] = {}
        self._crowded = self._patience = 0
        """Nodes that came into the crowd since the cells were made, and how many may before they are made anew."""

    # --- nodes ------------------------------------------------------------------------------------------------------

    def put(self, devices: NodeDevices) -> None:
        """A node that is new, or has changed in something that matters here."""
        known = self._nodes.get(devices.name)
        if known is not None and known[0] is devices:
            return
        host = objects.labels_of(devices.node).get(HOSTNAME)
        if host is not None:
            self._hosts[host] = devices.name
        self._nodes[devices.name] = devices, self._cell_of(devices)
        if self._crowded > self._patience:
            self._divide()  # without the cells in which no node is any more
            if len(self._cells) > MOST_CELLS // 2 and (self._labels or self._admitted.told != TOLD):
                self._read_less()
            self._patience = len(self._nodes) if self._crowded else 0
            self._crowded = 0

    def gone(self, name: str) -> None:
        known = self._nodes.pop(name, None)
        if known is not None:
            self._hosts.pop(objects.labels_of(known[0].node).get(HOSTNAME, ""), None)

    def bits(self, name: str) -> int:
        """The sets that the node belongs to: `Kind.sets`."""
        known = self._nodes.get(name)
        if known is None:
            return 0
        cell = known[1]
        if cell not in self._bits:
            self._bits[cell] = sum(1 << number for number, mask in enumerate(self._masks) if mask >> cell & 1)
        return self._bits[cell]

    def named(self, pods: Sequence[Pod]) -> list[str] | None:
        """The nodes, in order, that the pods call by name; None where they do not."""
        found = named(pods)
        if found is None:
            return None
        by_name, by_host = found
        called = {self._hosts[host] for host in by_host if host in self._hosts} | by_name
        return sorted(name for name in called if name in self._nodes)

    # --- requests ---------------------------------------------------------------------------------------------------

    def request(self, asked: Sequence[ResolvedClaim], pods: Sequence[Pod], request: Request) -> Request:
        """The request with the models and nodes that it may use."""
        self._questions += 1
        said = _said(asked, pods)
        key = said, request.gpus, request.nics
        found = self._answers.get(key)
        if found is None or found[0] != self.epoch or found[1] != len(self._cells):
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
                self._types.clear()
                self._words.clear()
            words = self._words_of(said, asked, pods)
            models, nodes = self._answer(words, request)
            found = self._answers[key] = (self.epoch, len(self._cells), models, nodes)
        models, nodes = found[2:]
        if nodes > NOWHERE:
            self._last[nodes] = self._questions
        return request if not models and nodes < 0 else request._replace(models=models, nodes=nodes)

    def shipped(self, asked: Sequence[ResolvedClaim]) -> Sequence[ResolvedClaim]:
        """The claims as if they named koordra's own classes, where a class of somebody else selects devices of one type.

        Which models it selects is said by `request`, as for a selector of the claim's own.
        """
        ways = [(claim, way) for claim in asked for one in claim.requests for way in one.alternatives]
        if all(way.device_class.name in KOORDRA_CLASSES for _, way in ways):
            return asked
        return [
            replace(
                claim,
                requests=tuple(
                    replace(one, alternatives=tuple(self._shipped(claim, way) for way in one.alternatives))
                    for one in claim.requests
                ),
            )
            for claim in asked
        ]

    def _shipped(self, claim: ResolvedClaim, way: RequestAlternative) -> RequestAlternative:
        if way.device_class.name in KOORDRA_CLASSES:
            return way
        known = self._types.get(way.kind)
        if known is None or known[0] != self.epoch:
            own = claim.own_driver_only
            types = [
                self._admitted.types(way, cell.devices, own_driver_only=own)
                for cell in self._cells
                if cell.devices is not None
            ]
            known = self._types[way.kind] = self.epoch, frozenset().union(*types)
        classes = {_CLASSES.get(one, "") for one in known[1]}
        name = classes.pop() if len(classes) == 1 else ""
        return replace(way, spec=replace(way.spec, device_class=name)) if name else way

    def _words_of(self, said: Hashable, asked: Sequence[ResolvedClaim], pods: Sequence[Pod]) -> _Words:
        found = self._words.get(said)
        if found is None or found.judged > len(self._cells):
            parts = tuple(
                _Asked(claim.own_driver_only, one.alternatives[0], one.alternatives[1:])
                for claim in asked
                for one in claim.requests
            )
            self._read_more(parts, pods)
            # Read anew: reading more forgets the words that were judged by less.
            found = self._words[said] = _Words(parts, tuple(pods))
        return found

    def _answer(self, words: _Words, request: Request) -> tuple[tuple[str, ...], int]:
        self._judge(words)
        models: tuple[str, ...] = ()
        if request.share:
            there = {cell.model for cell in self._cells if cell.gpus}
            able = {
                cell.model for at, cell in enumerate(self._cells) if cell.gpus and words.lasting >> at & 1
            }
            models = () if able == there else tuple(sorted(able))
            if there and not able:
                return (), NOWHERE
        least = max(request.gpus, 1 if request.share else 0)
        relevant = [
            at for at, cell in enumerate(self._cells) if cell.gpus >= least and cell.nics >= request.nics
        ]
        by_model = sum(1 << at for at in relevant if not models or self._cells[at].model in models)
        serving = sum(1 << at for at in relevant if words.serving >> at & 1)
        if serving == by_model:
            return models, -1
        return models, NOWHERE if not serving else self._number(words)

    def _number(self, words: _Words) -> int:
        """The number of the cells that serve; -1 where there is none left."""
        if words.serving in self._masks:
            return self._masks.index(words.serving)
        number = len(self._masks)
        if number >= MOST_SETS:
            number = min(range(1, number), key=self._last.__getitem__)
            if self._questions - self._last[number] < _LONG_AGO:
                return -1
            self._owners[number], self._masks[number] = words, words.serving
            self.epoch += 1
            self.version += 1
        else:
            self._owners.append(words)
            self._masks.append(words.serving)
            self._last.append(self._questions)
            self.added += 1
        self._bits.clear()
        return number

    def _judge(self, words: _Words) -> None:
        """Of the cells that came since."""
        if words.judged == len(self._cells):
            return
        pods = [weakened(pod, self._labels) for pod in words.pods]
        for at in range(words.judged, len(self._cells)):
            cell = self._cells[at]
            if cell.devices is None:
                words.serving |= 1 << at
                words.lasting |= 1 << at
                continue
            devices = [self._admits(one, cell.devices) for one in words.asked]
            if all(one.enough for one in devices) and suits(cell.node, pods):
                words.serving |= 1 << at
            if all(one.any for one in devices) and suits(cell.lasting, pods):
                words.lasting |= 1 << at
        words.judged = len(self._cells)

    def _admits(self, one: _Asked, at: Published) -> Admits:
        first = self._admitted.of(one.first, at, own_driver_only=one.own)
        any_of_them = first.any or any(
            self._admitted.of(other, at, own_driver_only=one.own).any for other in one.others
        )
        return Admits(any_of_them, first.enough)

    # --- cells ------------------------------------------------------------------------------------------------------

    def _cell_of(self, devices: NodeDevices) -> int:
        sort = published(devices.sources, self._admitted.told)
        kind = devices.kind
        nics = kind.shape.nics if kind.shape is not None else 0
        seen = seen_of(devices.node, self._labels)
        face: _Face = (sort.token, kind.model, kind.gpus, kind.shape is None, seen)
        found = self._at.get(face)
        crowded = found is None and len(self._cells) >= MOST_CELLS
        if crowded:
            self._crowded += 1
            face = (None, kind.model, kind.gpus, nics)
            found = self._at.get(face)
        if found is not None:
            return found
        found = self._at[face] = len(self._cells)
        told = (None, {}, {}) if crowded else (sort, *bare(devices.node, self._labels))
        self._cells.append(Cell(kind.model, kind.gpus, nics, *told))
        for number, owner in enumerate(self._owners):
            if owner is not None:
                self._judge(owner)
                self._masks[number] = owner.serving
        self.epoch += 1
        return found

    def _read_more(self, asked: Sequence[_Asked], pods: Sequence[Pod]) -> None:
        """Tell nodes apart by what these words read, too."""
        labels = labels_read(pods) - self._labels - self._refused
        told = frozenset().union(*(names_of(way) for one in asked for way in (one.first, *one.others)))
        told -= self._admitted.told | self._refused
        if len(self._labels | labels) > MOST_READ or len(self._admitted.told | told) > MOST_READ:
            return
        if self._patience or not (labels or told):
            return
        before = self._labels, self._admitted.told
        self._labels |= labels
        self._admitted.tell(told)
        self._divide()
        if self._crowded:
            self._refused |= labels | told
            self._labels = before[0]
            self._admitted = Admitted(self._admitted.features, before[1])
            self._divide()

    def _read_less(self) -> None:
        """Nodes came that differ too much: forget all that was read beyond the usual."""
        self._refused |= self._labels | (self._admitted.told - TOLD)
        self._labels = frozenset()
        self._admitted = Admitted(self._admitted.features)
        self._divide()

    def _divide(self) -> None:
        """The cells anew. Sets keep their numbers; words are judged anew."""
        before = {name: self.bits(name) for name in self._nodes}
        self._cells, self._at, self._crowded = [], {}, 0
        self._words.clear()
        self._bits.clear()
        for owner in self._owners:
            if owner is not None:
                owner.judged = owner.serving = owner.lasting = 0
        for name, (devices, _) in list(self._nodes.items()):
            self._nodes[name] = devices, self._cell_of(devices)
        self.epoch += 1
        if any(self.bits(name) != bits for name, bits in before.items()):
            self.version += 1


def _said(asked: Sequence[ResolvedClaim], pods: Sequence[Pod]) -> Hashable:
    return (
        tuple(
            [
                (claim.own_driver_only, way.kind, way.spec.count)
                for claim in asked
                for one in claim.requests
                for way in one.alternatives
            ]
        ),
        tuple([said_by(pod) for pod in pods]),
    )
