"""How the cards of one node may be kept, beside what the options say of all nodes of a DaemonSet. Pure.

    label of the Node                koordra.io/isolation: limiter.mig      words, with dots between them
    of one card (its device name,    isolation.koordra.io/gpu-0000-1f-00-0: mps
    or UUID)
    file (`--node-modes`)            HAMi's list of nodes, as its device plugin reads it, with koordra's words
                                     beside HAMi's

    nodeconfig:
    - name: node-a
      operatingmode: mig                         HAMi's: hami-core, mig or mps
      devicesplitcount: 10                       HAMi's: shares of a card
      isolation: [limiter, mig]                  koordra's words, in place of operatingmode
      cards:                                     koordra's own
      - {card: GPU-..., isolation: [mps]}        UUID, PCI address or device name

The first that is there counts: the label of the card, the file's card, the label of the node, the file's
node, the options. A label that cannot be meant changes nothing, and is told in the log: what keeps shares
must not follow from a slip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from koordra.api import names
from koordra.api.objects import Fields, labels_of
from koordra.api.opaque.isolation import IsolationPolicy, node_policy
from koordra.api.reader import Reader
from koordra.errors import InvalidInput
from koordra.logs import get_logger
from koordra.yaml_text import read_document

log = get_logger(__name__)
Cards = Mapping[str, IsolationPolicy]

OPERATING_MODES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"hami-core": ("limiter", "hami-core"), "mig": ("mig",), "mps": ("mps",)}
)
"""HAMi's modes. Its hami-core limits each process by a library in front of the driver: the limiter's way."""
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "devicememoryscaling": "there is no memory behind it",
        "devicecorescaling": "the compute of a card adds up to 100",
        "migstrategy": "instances are given out by their profile",
        "filterdevices": "use koordra cordon-device",
        "enablegetpreferredallocation": "the controller chooses",
    }
)
"""HAMi's other fields of a node, and why nothing follows from them."""


@dataclass(frozen=True, slots=True)
class NodeModes:
    """What the file says of one node. `slots`: shares of a card; `left_out`: fields from which nothing
    follows."""

    isolation: IsolationPolicy | None = None
    cards: Cards = field(default_factory=dict)
    slots: int | None = None
    left_out: tuple[str, ...] = ()

    def over(self, options: IsolationPolicy, node: Fields | None = None) -> tuple[IsolationPolicy, list[str]]:
        """What holds on the node, and what of its labels cannot be meant."""
        labelled, cards, wrong = _labels({} if node is None else labels_of(node))
        policy = labelled or self.isolation or options
        found = {**dict(options.cards), **self.cards, **cards}
        return replace(policy, cards=tuple(sorted(found.items()))), wrong


class PolicyOfNode:
    """The policy that holds on the node as it is labelled. `options`: that of the plugin's options;
    `backends`: those that the node has."""

    def __init__(self, options: IsolationPolicy, modes: NodeModes, backends: Collection[str]) -> None:
        self._options, self._modes, self._backends = options, modes, backends
        self._told: list[str] = []

    def __call__(self, node: Fields | None = None) -> IsolationPolicy:
        policy, wrong = self._modes.over(self._options, node)
        for text in wrong:
            if text not in self._told:
                log.error("isolation_label_not_followed", problem=text)
        self._told = wrong
        return policy.among(self._backends)


def read_node_modes(text: str, *, source: str, node: str) -> NodeModes:
    """What a file says of the node; nothing where it does not name it. Raises InvalidManifest."""
    read = Reader(read_document(text, source=source), object=source)
    entries = [(one, _modes(one)) for one in read.each("nodeconfig")]
    own = [modes for one, modes in entries if one.required("name") == node]
    if len(own) > 1:
        raise read.wrong(f"node {node} is named twice", at="nodeconfig")
    return own[0] if own else NodeModes()


def _modes(read: Reader) -> NodeModes:
    known = ("name", "operatingmode", "isolation", "devicesplitcount", "cards", *LEFT_OUT)
    read.only(*known)
    cards: dict[str, IsolationPolicy] = {}
    for card in read.each("cards"):
        card.only("card", "operatingmode", "isolation")
        policy = _policy(card)
        if policy is None:
            raise card.wrong("is missing", "say how the card is kept", at="isolation")
        cards[card.required("card").lower()] = policy
    said = tuple(f"{name}: {LEFT_OUT[name]}" for name in LEFT_OUT if read.data.get(name))
    return NodeModes(_policy(read), cards, read.between("devicesplitcount", 1, 1024), said)


def _policy(read: Reader) -> IsolationPolicy | None:
    mode, words = read.text("operatingmode"), read.texts("isolation")
    if mode and words:
        raise read.wrong("stands beside operatingmode", "write one of them", at="isolation")
    if mode and mode not in OPERATING_MODES:
        raise read.wrong(f"{mode!r} is no mode", f"write {', '.join(OPERATING_MODES)}", at="operatingmode")
    allowed = OPERATING_MODES[mode] if mode else words
    if not allowed:
        return None
    try:
        return node_policy(allowed)
    except InvalidInput as error:
        raise read.wrong(error.problem, error.remedy, at="isolation") from error


def _labels(labels: Fields) -> tuple[IsolationPolicy | None, Cards, list[str]]:
    of_node: IsolationPolicy | None = None
    cards: dict[str, IsolationPolicy] = {}
    wrong: list[str] = []
    for key, value in _own(labels):
        try:
            policy = node_policy([word for word in value.split(".") if word], field=f"label {key}")
        except InvalidInput as error:
            wrong.append(str(error))
            continue
        if key == names.ISOLATION_LABEL:
            of_node = policy
        else:
            cards[key.removeprefix(names.CARD_ISOLATION_PREFIX).lower()] = policy
    return of_node, cards, wrong


def _own(labels: Fields) -> Iterator[tuple[str, str]]:
    for key, value in sorted(labels.items()):
        if (key == names.ISOLATION_LABEL or key.startswith(names.CARD_ISOLATION_PREFIX)) and str(value):
            yield key, str(value)
