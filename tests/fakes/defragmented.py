"""The moves of a defragmentation as they are carried out, by free amounts alone."""

from __future__ import annotations

from collections.abc import Sequence

from koordra.placement.defragment.emptying import Pod, kept_free, without
from koordra.placement.defragment.moves import Freed, ways
from koordra.placement.free_amounts.state import FULL, WHOLE, Choice, FreeAmounts, Request, after
from koordra.topology.machine_shape import MachineShape


def empty(shape: MachineShape) -> FreeAmounts:
    """A node of the machine that nobody uses, with 16 cores and 128 GiB per GPU."""
    gpus, nics = (WHOLE,) * shape.gpus, (FULL,) * shape.nics
    return FreeAmounts(0, 16_000 * shape.gpus, 131_072 * shape.gpus, gpus, nics)


def filled(nodes: list[FreeAmounts], request: Request, name: str) -> Pod | None:
    """The request on the first node with enough of everything, on its first GPUs and NICs; None where there
    is none."""
    for number, state in enumerate(nodes):
        gpus = [at for at, free in enumerate(state.gpus) if free >= request.milli][: request.gpus]
        nics = [at for at, free in enumerate(state.nics) if free >= request.percent][: request.nics]
        enough = state.cpu >= request.cpu and state.memory >= request.memory
        if enough and (len(gpus), len(nics)) == (request.gpus, request.nics):
            nodes[number] = after(state, request, Choice(tuple(gpus), tuple(nics)))
            return Pod(name, number, request, tuple(gpus), tuple(nics))
    return None


def carried_out(nodes: Sequence[FreeAmounts | None], freed: Freed) -> list[FreeAmounts | None]:
    """The nodes after the moves, with the freed devices in use: the shape is free before that, and nobody has
    more than there is."""
    now = list(nodes)
    for move in freed.moves:
        state = now[move.pod.node]
        assert state is not None
        now[move.pod.node] = without(state, move.pod)
    site = now[freed.site.node]
    assert site is not None
    assert all(site.gpus[at] == WHOLE for at in freed.site.gpus)
    assert all(site.nics[at] == FULL for at in freed.site.nics)
    now[freed.site.node] = kept_free(site, freed.site)
    for node in {move.node for move in freed.moves}:
        state = now[node]
        assert state is not None
        full = seated(state, [move.pod.request for move in freed.moves if move.node == node])
        assert full is not None, f"what moves to node {node} does not fit there"
        now[node] = full
    return now


def seated(state: FreeAmounts, requests: Sequence[Request]) -> FreeAmounts | None:
    """The node with all of these, on whatever devices; None where they do not fit."""
    if not requests:
        return state
    for choice in ways(state, requests[0]):
        placed = after(state, requests[0], choice)
        if min(placed.cpu, placed.memory) >= 0 and (found := seated(placed, requests[1:])) is not None:
            return found
    return None
