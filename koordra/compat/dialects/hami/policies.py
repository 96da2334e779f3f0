"""HAMi's annotations about the choice of nodes and cards: binpack and spread, mutex, NUMA, weights.

A word that HAMi does not know is left out with a warning, as HAMi leaves it out; weights that would keep HAMi from placing the
pod are refused.
"""

from __future__ import annotations

from typing import Final

from koordra.api.opaque.parameters import DevicePolicy, NodePolicy
from koordra.compat.dialect import split_list
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialects.hami.vocabulary import CARD_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS

_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")

_NODE_POLICIES: Final = {"binpack": NodePolicy.BINPACK, "spread": NodePolicy.SPREAD}
_DEVICE_POLICIES: Final = {
    "binpack": DevicePolicy.BINPACK,
    "spread": DevicePolicy.SPREAD,
    "topology-aware": DevicePolicy.TOPOLOGY_AWARE,
}


def policies_of(view: PodView) -> tuple[NodePolicy | None, DevicePolicy | None, bool, bool | None]:
    """(node policy, card policy, mutex, NUMA: True required, False preferred, None neither)."""
    device: DevicePolicy | None = None
    mutex, numa = False, _numa_bind(view)
    for word in split_list(view, CARD_POLICY) or ():
        if word == "mutex":
            mutex = True
            view.warn(CARD_POLICY, "mutex: the card is kept alone, also from pods that come later")
        elif word in ("numa", "numa-bind"):
            numa = numa or False
        elif word not in _DEVICE_POLICIES:
            known = f"policies are {', '.join(_DEVICE_POLICIES)}, mutex and numa"
            view.warn(CARD_POLICY, f"{word!r} is no policy and is left out", known)
        elif device is None:
            device = _DEVICE_POLICIES[word]
        else:
            view.warn(CARD_POLICY, f"{word!r} comes after another policy and is left out")
    _check_weights(view)
    return _node_policy(view), device, mutex, numa


def _node_policy(view: PodView) -> NodePolicy | None:
    text = (view.annotation(NODE_POLICY) or "").strip()
    if text and text not in _NODE_POLICIES:
        problem = f"{view.annotation(NODE_POLICY)!r} is no policy and is left out"
        view.warn(NODE_POLICY, problem, f"write {' or '.join(_NODE_POLICIES)}")
    return _NODE_POLICIES.get(text)


def _numa_bind(view: PodView) -> bool | None:
    text = view.annotation(NUMA_BIND)
    if text is None or text in _FALSE:
        return None
    if text not in _TRUE:
        view.warn(NUMA_BIND, f"{text!r} is neither true nor false; HAMi takes it for false")
        return None
    return True


def _check_weights(view: PodView) -> None:
    text = view.annotation(WEIGHTS)
    if text is None:
        return
    pairs = [entry.strip().partition("=") for entry in text.split(",")]
    weights = {name.strip(): value.strip() for name, _, value in pairs}
    numbers = [int(value) for value in weights.values() if value.isascii() and value.isdigit()]
    if set(weights) != {"slot", "core", "memory"} or len(numbers) != 3 or len(pairs) != 3 or not any(numbers):
        problem = f"{text!r} would keep HAMi from placing the pod"
        raise view.refuse(WEIGHTS, problem, 'write it like "slot=1,core=1,memory=3"')
    view.warn(WEIGHTS, "koordra has a score of its own; the weights are left out")
