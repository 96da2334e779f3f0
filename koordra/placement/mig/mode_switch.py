"""Which cards would have to be put into the other MIG mode for a group that fits nowhere as they are. Pure.

What a card has in the mode that it is not in is published with a taint (`Pool.switchable`). The group is
searched for as if it could be had: first on each card of a node alone, so that no more are switched than it
needs, then on all of them. Counters see to it that only a card of which nobody has anything comes into
question. The controller asks for the switch by this, and `explain`, `plan` and Events tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.allocator.devices.pools import card_of
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.allocator.search.solution import CostPair
from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.api.devices import DeviceID
from koordra.effort import spend
from koordra.placement.decide import Engine, Excluded
from koordra.placement.gang.types import GangAnswer, GangPlaced
from koordra.placement.index import NodeInfo
from koordra.placement.request.request_class import ResolvedGroup, refusals

MOST_NODES: Final = 8
"""Nodes that are looked into for one group."""


@dataclass(frozen=True, slots=True)
class ModeSwitch:
    """`cards`: by device name, whether the card is to be in MIG mode."""

    node: str
    cards: Mapping[str, bool]
    under_way: bool = False

    @property
    def reason(self) -> Reason:
        into = ", ".join(
            f"{card} {'into' if enabled else 'out of'} MIG mode"
            for card, enabled in sorted(self.cards.items())
        )
        what = "is being switched" if self.under_way else "is to be switched first, which koordra does"
        return reason_of(Cause.MODE_SWITCHING, f"{into}: {what}", self.node)


def mode_switch(engine: Engine, resolved: ResolvedGroup, excluded: Excluded) -> ModeSwitch | None:
    """The best for the group, which fits nowhere; None where no switch helps."""
    found: list[tuple[int, CostPair, str, ModeSwitch]] = []
    looked = 0
    for name in sorted(engine.index.inventory.switchable - excluded.keys()):
        info = engine.index.nodes.get(name)
        if info is None or refusals(engine.index, resolved.group, info):
            continue
        if (looked := looked + 1) > MOST_NODES:
            break
        best = _on_node(engine, resolved, info)
        if best is not None:
            cost, switch = best
            found.append((len(switch.cards), cost, name, switch))
    return min(found, key=lambda one: one[:3])[3] if found else None


def gang_switches(
    engine: Engine, place: Callable[[], GangAnswer], declined: Collection[str]
) -> tuple[ModeSwitch, ...]:
    """Of the nodes whose cards have to be switched for a gang that fits nowhere as they are, which is placed
    as if they were: on as few nodes as it takes, by doubling. Empty where no switch helps."""
    index = engine.index
    nodes = [
        name for name in sorted(index.inventory.switchable) if name in index.nodes and name not in declined
    ]
    nodes, count = nodes[:MOST_NODES], 1
    while nodes:
        with index.switched(nodes[:count]):
            answer = place()
        if isinstance(answer, GangPlaced):
            taken = {
                one.device
                for member in answer.members
                for given in member.allocations.values()
                if (allocation := Allocation.of_claim({"status": {"allocation": given}})) is not None
                for one in allocation.results
            }
            found = (_switch_to(index.nodes[name], taken) for name in nodes[:count])
            return tuple(switch for switch in found if switch.cards)
        if count >= len(nodes):
            break
        count *= 2
    return ()


def _on_node(engine: Engine, resolved: ResolvedGroup, info: NodeInfo) -> tuple[CostPair, ModeSwitch] | None:
    offers = [
        (offer.cost, switch)
        for card in _cards(info)
        if (offer := _offer(engine, resolved, info, card)) is not None
        and (switch := _switch_for(info, offer)).cards
    ]
    if offers:
        return min(offers, key=lambda one: (one[0], sorted(one[1].cards)))
    everywhere = _offer(engine, resolved, info, None)
    return None if everywhere is None else (everywhere.cost, _switch_for(info, everywhere))


def _offer(engine: Engine, resolved: ResolvedGroup, info: NodeInfo, card: str | None) -> Offer | None:
    """`card`: the one that is switched; None: any of them."""
    spend(1)
    only = None if card is None else (card,)
    pools = [pool.switched(only) if pool.switchable else pool for pool in info.pools]
    return engine.search(resolved, info, engine.index.taken, pools=pools).offer


def _cards(info: NodeInfo) -> list[str]:
    return sorted({card_of(one) for pool in info.pools for one in pool.switchable})


def _switch_for(info: NodeInfo, offer: Offer) -> ModeSwitch:
    """Of the cards of which the offer has what they have not now."""
    return _switch_to(info, {offer.devices[one.device].id for one in offer.placed})


def _switch_to(info: NodeInfo, used: Collection[DeviceID]) -> ModeSwitch:
    """Of the cards of which these devices are, and are not there now."""
    switchable = {one.id: one for pool in info.pools for one in pool.switchable}
    chosen = [one for identity, one in switchable.items() if identity in used]
    cards = {card_of(one): one.type == names.TYPE_MIG for one in chosen}
    return ModeSwitch(info.name, cards, under_way=bool(set(cards) & set(_under_way(info))))


def _under_way(info: NodeInfo) -> Iterator[str]:
    for pool in info.pools:
        for one in pool.devices:
            if any(taint.key == names.MIG_MODE_TAINT for taint in one.taints):
                yield card_of(one)
