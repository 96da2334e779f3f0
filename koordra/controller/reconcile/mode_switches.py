"""Has nodes switch the MIG mode of cards for groups that wait and would fit then.

    the group fits nowhere as cards are      placement/mig/mode_switch finds a node where it would
    asked                                    an annotation of that Node (koordra.api.opaque.mode_request), one
                                             a node; one for a group, as many as it takes for a gang
    the plugin withholds the cards           their taint; where nobody has any: cleared
    switched, refused, or given up           taken back; what waits is planned on what is there then

A request is taken back, too, when nobody waits for it any more, when somebody has a card, or when the node
does not take it up within ANSWERS_WITHIN, or is not done with it within DONE_WITHIN: another node is asked
then. The plugin withholds the cards for as long as it has to, whether the request stands or not. All of it
follows from Nodes and slices, so that it does not matter which leader goes on with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from koordra.allocator.devices.pools import Pool, PublishedDevice, card_of
from koordra.allocator.reasons import Cause, reason_of
from koordra.api import names, objects
from koordra.api.kinds import NODES
from koordra.api.objects import Object
from koordra.api.opaque.mode_request import ModeRequest, mode_request
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.writes import WriteOutcome
from koordra.logs import get_logger
from koordra.placement.index import NodeInfo
from koordra.placement.mig.mode_switch import ModeSwitch

log = get_logger(__name__)

ANSWERS_WITHIN: Final = 60.0
"""Seconds in which a node withholds the cards."""
DONE_WITHIN: Final = 300.0
WITHDRAWN_AFTER: Final = 30.0
"""Seconds after which a request for which nobody waits is taken back: a new leader plans all that waits."""
DECLINED_FOR: Final = 300.0
LOOK_EVERY: Final = 5.0


class ModeSwitches:
    """Not thread-safe. `token` makes one that no request had."""

    def __init__(
        self, context: PassContext, placer: Placer, *, token: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        self._context, self._placer, self._token = context, placer, token
        self._wanted: dict[str, tuple[Sequence[ModeSwitch], str]] = {}
        """By key of the group, or of the gang: what would do, together, and who that is."""
        self._asked: dict[str, float] = {}
        """Nodes with a request, and since when it is known."""
        self._refused_until = 0.0
        context.cache.listen(NODES, self._on_node, replay=True)

    def _on_node(self, name: str, _before: Object | None, now: Object | None) -> None:
        if now is not None and names.MIG_MODE_ANNOTATION in objects.annotations_of(now):
            self._asked.setdefault(name, self._context.clock())
        else:
            self._asked.pop(name, None)

    def want(self, key: str, label: str, switches: Sequence[ModeSwitch]) -> None:
        """The group, or the gang, fits nowhere, and would with all of these; none: no more."""
        if switches:
            self._wanted[key] = switches, label
        else:
            self._wanted.pop(key, None)

    def forget(self, key: str) -> None:
        self._wanted.pop(key, None)

    def step(self) -> None:
        """Raises ApiUnreachable."""
        now = self._context.clock()
        declined = self._placer.declined
        for name in [name for name, (until, _) in declined.items() if until <= now]:
            del declined[name]
        if not (self._wanted or self._asked) or now < self._refused_until:
            return
        for name in sorted(self._asked):
            self._follow(name, now)
        for switches, label in [self._wanted[key] for key in sorted(self._wanted)]:
            if label not in self._waiting():
                for switch in switches:
                    self._ask(switch, label)
        if self._asked:
            self._context.wake(now + LOOK_EVERY)

    # what was asked

    def _follow(self, name: str, now: float) -> None:
        node, info = self._context.cache.nodes[name], self._placer.nodes.get(name)
        request, pool = mode_request(node), None if info is None else _own_pool(info)
        age = now - self._asked[name]
        if request is None or (pool is not None and _is_over(request, pool)):
            self._write(node, None)
        elif request.is_clear and pool is not None and not _is_withheld(request, pool):
            self._write(node, None)  # given up
        elif age > (DONE_WITHIN if request.is_clear else ANSWERS_WITHIN):
            why = f"{name} has not switched {', '.join(card for card, _ in request.cards)}"
            self._placer.declined[name] = now + DECLINED_FOR, reason_of(Cause.NODE_UNSUITABLE, why, name)
            log.warning("mig_mode_not_switched", node=name, asked_for=request.waiting)
            self._write(node, None)
        elif pool is not None and not request.is_clear and _is_withheld(request, pool):
            taken, devices = self._placer.engine.index.taken, _devices(request, pool)
            somebody = any(taken.in_use(one.id) for one in devices)
            self._write(node, None if somebody else request.cleared())
        elif age > WITHDRAWN_AFTER and not request.is_clear and not self._is_wanted(request):
            self._write(node, None)

    def _is_wanted(self, request: ModeRequest) -> bool:
        return any(label == request.waiting for _, label in self._wanted.values())

    # what is to be asked

    def _ask(self, switch: ModeSwitch, label: str) -> None:
        node = self._context.cache.nodes.get(switch.node)
        is_busy = switch.node in self._asked or switch.node in self._placer.declined
        if node is None or is_busy:
            return
        request = ModeRequest(self._token(), tuple(sorted(switch.cards.items())), label)
        log.info("mig_mode_asked", node=switch.node, cards=dict(switch.cards), asked_for=label)
        self._write(node, request)

    def _waiting(self) -> set[str]:
        found = (mode_request(self._context.cache.nodes[name]) for name in self._asked)
        return {request.waiting for request in found if request is not None}

    def _write(self, node: Object, request: ModeRequest | None) -> None:
        context, text = self._context, None if request is None else request.text()
        written = context.settled(context.writer.annotate(node, names.MIG_MODE_ANNOTATION, text))
        if written.outcome is WriteOutcome.REFUSED:
            log.error("mig_mode_request_not_written", node=objects.name(node), error=written.message)
            self._refused_until = context.clock() + REFUSED_PAUSE
            context.wake(self._refused_until)
        elif request is not None:
            self._asked.setdefault(objects.name(node), context.clock())


def _own_pool(info: NodeInfo) -> Pool | None:
    """None while the node writes its slices, and where they cannot be read."""
    own = (names.DRIVER, info.name)
    return next((pool for pool in info.pools if pool.id == own and not pool.trouble), None)


def _devices(request: ModeRequest, pool: Pool) -> list[PublishedDevice]:
    """What the cards have in the mode that they are in."""
    cards = {card for card, _ in request.cards}
    return [one for one in pool.devices if card_of(one) in cards and _token_of(one) != names.MIG_MODE_NEEDED]


def _is_over(request: ModeRequest, pool: Pool) -> bool:
    """Whether the cards are as asked for, or nobody is to switch them any more."""
    needed = {card_of(one): one.type == names.TYPE_MIG for one in pool.switchable}
    return not any(needed.get(card) == on for card, on in request.cards)


def _is_withheld(request: ModeRequest, pool: Pool) -> bool:
    """Whether the node gives none of the cards to anybody, as they are. One that is given out in instances
    alone has nothing as long as it is whole."""
    return all(_token_of(one) == request.token for one in _devices(request, pool))


def _token_of(one: PublishedDevice) -> str:
    return next((taint.value for taint in one.taints if taint.key == names.MIG_MODE_TAINT), "")
