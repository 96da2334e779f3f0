"""The cards of all nodes: a cell each, by the blocks of the network, and the figures by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final
from urllib.parse import urlencode

from koordra.cli.cluster.dashboard.fleet import (
    Block,
    CardState,
    Filter,
    Fleet,
    NodeCards,
    block_name,
    blocks_of,
    by_model,
)
from koordra.cli.cluster.dashboard.markup import Html, joined, link, page, table, tag

MOST_NODES: Final = 1500
"""Drawn in one page."""
_CELLS: Final = {state: Html(f"<i class={state.letter}></i>") for state in CardState}
_WORDS: Final = {
    CardState.FREE: "free",
    CardState.SHARED: "shared: something is left",
    CardState.TAKEN: "taken: nothing is left",
    CardState.TAINTED: "tainted: kept from new claims",
    CardState.OFF: "not usable",
}


def fleet_page(fleet: Fleet, shown: Filter) -> bytes:
    everything = fleet.nodes
    nodes = shown.of(everything)
    return page(
        "Fleet",
        _models(everything, shown),
        _key(),
        _filtered(shown, len(nodes), len(everything)),
        *_blocks(blocks_of(nodes), shown),
        tag("p", "no node publishes a device of koordra's", class_="empty") if not everything else "",
        root="",
        at="Fleet",
        moment=fleet.at,
        refresh=True,
    )


def _models(nodes: Sequence[NodeCards], shown: Filter) -> Html:
    counted = by_model(nodes)
    if not counted:
        return Html("")
    rows = [(_only(model, shown, model=model), *_figures(states)) for model, states in counted.items()]
    if len(counted) > 1:
        rows.append((tag("b", "all"), *_figures(sum(counted.values(), Counter[CardState]()))))
    header = ("GPUs", "all", *(_only(state.value, shown, state=state.value) for state in CardState))
    return table(header, rows, class_="figures")


def _figures(states: Counter[CardState]) -> list[str]:
    return [f"{states.total():,}", *(f"{states[state]:,}" for state in CardState)]


def _key() -> Html:
    return tag(
        "div", *(tag("span", _CELLS[state], f" {words}") for state, words in _WORDS.items()), class_="key"
    )


def _only(words: str, shown: Filter, **changed: str) -> Html:
    """A link to what is shown with another filter."""
    fields = {"model": shown.model, "block": shown.block, "state": shown.state, **changed}
    asked = urlencode({name: value for name, value in fields.items() if value})
    return tag("a", words, href=f"./?{asked}" if asked else "./")


def _filtered(shown: Filter, number: int, of: int) -> Html:
    words = [
        (what, value, _only("show all", shown, **{what: ""}))
        for what, value in (("model", shown.model), ("block", shown.block), ("state", shown.state))
        if value
    ]
    if not words:
        return Html("")
    told = joined(
        (joined((f"{what} ", tag("b", value), " (", all_, ")")) for what, value, all_ in words), ", "
    )
    return tag("p", f"{number:,} of {of:,} nodes: ", told, class_="faint")


def _blocks(blocks: Sequence[Block], shown: Filter) -> Iterable[Html]:
    """As many nodes as a page has; of the other blocks the figures."""
    left = MOST_NODES
    for block in blocks:
        drawn = list(islice(block.nodes, max(0, left)))
        left -= len(block.nodes)
        if block.path or len(blocks) > 1:
            yield tag(
                "h2", _only(block_name(block.path), shown, block=block_name(block.path)), " ", _told(block)
            )
        if drawn:
            yield tag("div", *map(_node, drawn), class_="grid")
        if len(drawn) < len(block.nodes):
            more = len(block.nodes) - len(drawn)
            yield tag(
                "p",
                f"{more:,} nodes of it are not drawn: choose the block, a model or a state",
                class_="faint",
            )


def _told(block: Block) -> Html:
    states, nodes = block.states, len(block.nodes)
    return tag(
        "small",
        f"{nodes:,} {'node' if nodes == 1 else 'nodes'}, {states.total():,} GPUs, {states[CardState.FREE]:,} free",
    )


def _node(node: NodeCards) -> Html:
    states = ", ".join(f"{number} {state.value}" for state, number in node.states.items())
    models = ", ".join(sorted({card.model for card in node.cards})) or "no GPU"
    told = "; ".join(filter(None, (f"{node.name}: {models}", states, node.trouble)))
    cells = joined(_CELLS[card.state] for card in node.cards)
    inside = joined((tag("b", node.name), cells or tag("span", "no GPU", class_="faint")))
    made = link("", inside, "node", node.name, class_="node bad" if node.trouble else "node")
    return Html(made.replace("<a ", f'<a title="{joined([told])}" ', 1))
