"""How many devices of a node a request could have: of its class, suitable, free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.allocator.request.requests import RequestAlternative
from koordra.api import names

_OFFERED_BY: Final = {
    names.TYPE_MIG: "no card here is offered in MIG instances, which takes a card in MIG mode (nvidia-smi -mig 1) with "
    "instances and the kubelet plugin's --mig",
    names.TYPE_VF: "no NIC here is offered in virtual functions, which takes the kubelet plugin's --vfs (koordra node make-vfs)",
}
"""By type of device: how a node comes to offer such."""

_ORDER: Final = tuple(Cause)


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Devices that the request needs on one node; those that the node publishes, those of the class, those
    that could serve the request if nobody used them, and those that can now."""

    needed: int
    published: int
    of_class: int
    suitable: int
    free: int

    def reason(self, node: str, wanted: RequestAlternative, causes: Collection[Cause]) -> Reason:
        """`causes`: why devices of the class cannot serve the request."""
        name = wanted.device_class.name
        clause = f"devices: requested {'all' if wanted.takes_all else self.needed} of class {name},"
        if not self.published:
            nothing = _reason(node, None, Cause.NODE_UNSUITABLE, "the node publishes no devices")
            return replace(nothing, is_aside=True)
        if not self.of_class:
            how = how_to_offer(wanted)
            detail = f"{clause} the node has none{f': {how}' if how else ''}"
            return _reason(node, wanted.label, Cause.SELECTOR_MISMATCH, detail)
        has, at_best = f"the node has {self.of_class}", f"no node has more than {self.of_class}"
        cause = Cause.EXCEEDS_DEVICE
        if self.of_class >= self.needed:
            cause = min(causes, key=_ORDER.index, default=Cause.INSUFFICIENT_CAPACITY)
            has = f"{self.suitable} of {self.of_class} suitable, {self.free} free"
            if not self.suitable:
                has = f"none of {self.of_class} is suitable"
            at_best = f"at best {has}"
        lacking = sum(
            self.needed - min(self.needed, one) for one in (self.of_class, self.suitable, self.free)
        )
        return Reason(
            node,
            None,
            wanted.label,
            cause.value,
            f"{clause} {has}",
            clause=clause,
            at_best=at_best,
            short=lacking / (3 * self.needed),
        )


def _reason(node: str, request: str | None, cause: Cause, detail: str) -> Reason:
    return Reason(node, None, request, cause.value, detail)


def how_to_offer(wanted: RequestAlternative) -> str:
    """How a node comes to offer what the class selects; empty where that is nothing to be switched on."""
    return next((text for kind, text in _OFFERED_BY.items() if _asks_for(wanted, kind)), "")


def _asks_for(wanted: RequestAlternative, kind: str) -> bool:
    """Whether the class selects devices of this type alone."""
    return any(
        f'"{kind}"' in expression or f"'{kind}'" in expression for expression in wanted.device_class.selectors
    )
