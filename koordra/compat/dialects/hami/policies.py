"""HAMi's annotations about the choice of nodes and cards: binpack and spread, mutex, NUMA, weights.

A word that HAMi does not know is left out with a warning, as HAMi leaves it out; weights that would keep HAMi from placing the
pod are refused.
"""

from __future__ import annotations

from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy
from koordra.compat.dialect import PodView, split_list
from koordra.compat.dialects.hami.vocabulary import CARD_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")

_DEVICE_POLICIES: Final = {
    "binpack": DevicePolicy.BINPACK,
    "spread": DevicePolicy.SPREAD,
    "topology-aware": DevicePolicy.TOPOLOGY_AWARE,
}


def policies_of(
    view: PodView, notes: Notes
) -> tuple[NodePolicy | None, DevicePolicy | None, bool, bool | None]:
    """(node policy, card policy, mutex, NUMA: True required, False preferred, None neither)."""
    node = _word(view, NODE_POLICY, {"binpack": NodePolicy.BINPACK, "spread": NodePolicy.SPREAD}, notes)
    device: DevicePolicy | None = None
    mutex, numa = False, _numa_bind(view, notes)
    for word in split_list(view, CARD_POLICY, notes=notes) or ():
        if word == "mutex":
            mutex = True
            notes.warn(
                view.field(CARD_POLICY), "mutex: the card is kept alone, also from pods that come later"
            )
        elif word in ("numa", "numa-bind"):
            numa = numa or False
        elif word not in _DEVICE_POLICIES:
            notes.warn(
                view.field(CARD_POLICY),
                f"{word!r} is no policy and is left out",
                f"policies are {', '.join(_DEVICE_POLICIES)}, mutex and numa",
            )
        elif device is None:
            device = _DEVICE_POLICIES[word]
        else:
            notes.warn(view.field(CARD_POLICY), f"{word!r} comes after another policy and is left out")
    _check_weights(view, notes)
    return node, device, mutex, numa


def _word(view: PodView, key: str, words: dict[str, NodePolicy], notes: Notes) -> NodePolicy | None:
    said = view.annotation(key)
    if said is None or not said.strip():
        return None
    if said.strip() not in words:
        notes.warn(view.field(key), f"{said!r} is no policy and is left out", f"write {' or '.join(words)}")
    return words.get(said.strip())


def _numa_bind(view: PodView, notes: Notes) -> bool | None:
    said = view.annotation(NUMA_BIND)
    if said is None or said in _FALSE:
        return None
    if said not in _TRUE:
        notes.warn(view.field(NUMA_BIND), f"{said!r} is neither true nor false; HAMi takes it for false")
        return None
    return True


def _check_weights(view: PodView, notes: Notes) -> None:
    said = view.annotation(WEIGHTS)
    if said is None:
        return
    pairs = [entry.strip().partition("=") for entry in said.split(",")]
    weights = {name.strip(): value.strip() for name, _, value in pairs}
    numbers = [int(value) for value in weights.values() if value.isascii() and value.isdigit()]
    if set(weights) != {"slot", "core", "memory"} or len(numbers) != 3 or len(pairs) != 3 or not any(numbers):
        raise notes.refuse(
            view.field(WEIGHTS),
            f"{said!r} would keep HAMi from placing the pod",
            'write it like "slot=1,core=1,memory=3"',
        )
    notes.warn(view.field(WEIGHTS), "koordra has a score of its own; the weights are left out")
