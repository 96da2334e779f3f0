"""Isolation of GPU shares: the operator's policy, and the one rule that admission, allocation and Prepare
apply, in either mode and for whatever object a claim was made of.

The operator says which isolation backends keep shares of a card, and which one where nothing asks for any, in
two places:

    node    `koordra kubelet-plugin --allowed-isolation --default-isolation`, for single cards by the node's
            labels or a file (kubelet_plugin/publish/node_modes.py), published as attributes of each GPU
    class   `allowedIsolation` and `defaultIsolation` of GpuConfig in a DeviceClass, or in a ResourceClass's
            policy

The word for a share, first that is there:

    isolation of the class's configuration > of the claim's > default of the class > default of the node

`Auto` is the first word that the node has, in the order of the class's `allowedIsolation`, or where that says
nothing in AUTO_ORDER. A class's own `Auto` leaves it to the claim to name one. The allocator writes what it
is into the allocation; without it Prepare finds the same.

The word must be allowed by the class, where that says anything, and by the node; otherwise the share is
refused. A node allows the limiter where nothing is said. A card is kept in one way at a time (`are_apart`),
and no allocator knows in which. So a card's list has words that may be beside each other alone: `none` (a
share without limits), `mps` and `timeslicing` each have cards of their own, and a class that demands one gets
it there. `mig` alone is a card that is given out in instances only; beside others, one that is switched to
what is asked for (kubelet_plugin/isolation/mig/switching.py).

A limit counts what CUDA takes. So parts of the driver that take memory past it (UNCOUNTED) come with a
limited share where the class gives them; a claim that asks for them itself is refused.

A whole card, or one whose slots a claim takes all, is no share: nobody else is on it, and `none` is what it
has without a word.

A node's policy is published with each GPU, and read of the device that is asked about.

A fatal fault of one MPS client ends all clients of its card. So the shares of a card by `mps` are claims of
one namespace (`strangers`), unless the operator says that namespaces share (`--mps-shared`). And a process is
the client of one MPS daemon, which is one card's: a claim that has a share by `mps` has no other card
(`is_one_card`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Final

from koordra.api import names
from koordra.api.devices import Capacity
from koordra.api.opaque.driver_capabilities import ALL, COUNTED, DriverCapabilities
from koordra.api.opaque.isolation_words import AUTO, ISOLATIONS, NO_ISOLATION, isolations
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """What an operator says. `allowed` in order of preference, None: nothing said; `default`: the first of
    them if None. `cards`: what holds of single cards of a node instead, by their UUID, PCI address or device
    name, in lower case."""

    allowed: tuple[str, ...] | None = None
    default: str | None = None
    cards: tuple[tuple[str, IsolationPolicy], ...] = ()

    @property
    def word(self) -> str | None:
        """The isolation of a share for which nothing asks for any."""
        return self.default or (self.allowed[0] if self.allowed else None)

    def among(self, available: Collection[str]) -> IsolationPolicy:
        """What is left of a node's policy with the backends that it has."""
        allowed = tuple(word for word in self.allowed or () if word in available)
        default = self.default if self.default in allowed else None
        return IsolationPolicy(
            allowed, default, tuple((card, own.among(available)) for card, own in self.cards)
        )

    def of_card(self, *called: str | None) -> IsolationPolicy:
        """What holds of the card that is called so."""
        known = {name.lower() for name in called if name}
        own = next((policy for card, policy in self.cards if card in known), None)
        return own or IsolationPolicy(self.allowed, self.default)

    @property
    def has_instances(self) -> bool:
        """Whether MIG instances are among what a card may be."""
        return INSTANCES in (self.allowed or ())

    @property
    def of_shares(self) -> IsolationPolicy:
        """What is left of it on a card that is not in MIG mode."""
        if self.allowed is None:
            return self
        return self.among([word for word in self.allowed if word != INSTANCES])

    def attributes(self) -> dict[str, bool]:
        """What a node publishes of its policy. `none` is there either way, as the sign of a node that has a
        policy."""
        if self.allowed is None:
            return {}
        return {attribute(NO_ISOLATION): False} | {attribute(word): True for word in self.allowed}


LIMITED: Final = IsolationPolicy(("limiter",))
"""The policy of a node whose operator says nothing."""


def node_policy(
    allowed: Iterable[str], default: str | None = None, *, field: str = "--allowed-isolation"
) -> IsolationPolicy:
    """The policy that an operator gives a node, or a card, in this field. Raises InvalidInput."""
    named = dict.fromkeys(word for said in allowed for word in (ANY_WORDS if said == ANY else (said,)))
    words = tuple(named) or LIMITED.allowed or ()
    for word in (*words, *((default,) if default else ())):
        if word not in isolations():
            known = ", ".join((*isolations(), ANY))
            raise InvalidInput(f"no backend is called {word!r}", field=field, remedy=f"use {known}")
    if default is not None and default not in words:
        raise InvalidInput(
            f"{default} is not among {', '.join(words)}", field="--default-isolation", remedy="allow it too"
        )
    apart = next(((one, other) for one, other in combinations(words, 2) if are_apart(one, other)), None)
    if apart is not None:
        raise InvalidInput(
            f"{apart[0]} beside {apart[1]}: a card is kept in one way at a time, and shares of both would be sent to one card",
            field=field,
            remedy=f"give nodes for {apart[0]} and nodes for {apart[1]} a policy of their own",
        )
    return IsolationPolicy(words, default)


def attribute(word: str) -> str:
    """The name of the attribute for a backend: `hami-core` -> `koordra.io/isolationHamiCore`."""
    return names.ATTR_ISOLATION + "".join(part.capitalize() for part in word.split("-"))


def published_policy(attributes: Mapping[str, object]) -> IsolationPolicy | None:
    """The policy in a device's attributes; None where its node publishes none, and Prepare decides alone."""
    if attribute(NO_ISOLATION) not in attributes:
        return None
    return IsolationPolicy(tuple(word for word in isolations() if attributes.get(attribute(word)) is True))


def has_mps(attributes: Mapping[str, object]) -> bool:
    """Whether shares of the device with these attributes may be by MPS."""
    return attributes.get(_MPS) is True


def of_one_namespace(attributes: Mapping[str, object]) -> bool:
    """Whether shares of the device with these attributes may be for claims of one namespace only."""
    return has_mps(attributes) and attributes.get(names.ATTR_MPS_SHARED) is not True


def is_one_card(word: str | None) -> bool:
    """Whether a claim with a share of this isolation may have no other card."""
    return word == "mps"


ONE_CARD: Final = "a process is the client of one MPS daemon, which is one card's"
ONE_CARD_REMEDY: Final = "make a claim for each card, for containers of their own, or ask for whole cards"


def several_cards(count: int) -> str:
    """The problem of a request for so many cards, which are different ones also where they can be shared."""
    return f"isolation mps: requested {count} cards, and {ONE_CARD}"


def strangers(word: str, namespace: str, others: Collection[str], *, shared: bool) -> str:
    """The namespaces, among those of the card's other shares with this isolation, beside which a claim of
    the namespace may not be; empty where it may."""
    if word != "mps" or shared:
        return ""
    return ", ".join(sorted({other or "nobody that is known" for other in others} - {namespace}))


STRANGERS: Final = (
    "isolation mps: a fault of one client ends all of its card, so a card is for claims of one namespace, where its node's plugin "
    "has no --mps-shared; this one has claims of"
)
"""What is said before `strangers`."""
UNCOUNTED: Final = ALL - COUNTED


def is_share(consumed: Mapping[str, Decimal], capacity: Mapping[str, Capacity]) -> bool:
    """Whether others can be on a card of which so much is consumed: neither all of its memory, nor all of
    its slots."""
    return all(
        consumed[name] < capacity[name].value
        for name in (names.CAPACITY_MEMORY, names.CAPACITY_SLOTS)
        if name in consumed and name in capacity
    )


_BESIDE_EACH_OTHER: Final = frozenset({"limiter", "hami-core"})
"""They limit each process by itself; every other backend does something to the card, or may."""
INSTANCES: Final = "mig"
"""Of cards in MIG mode, which have no shares of another kind."""
_MPS: Final = attribute("mps")
_OF_CARDS: Final = frozenset({"mps", "timeslicing"})
"""They set the compute mode and the time-slice of a card; its instances have neither."""
ANY: Final = "any"
"""Of a card that may be whole, in shares, or in instances, as they are asked for."""
ANY_WORDS: Final = (*(LIMITED.allowed or ()), INSTANCES)


def are_apart(word: str, other: str) -> bool:
    """Whether shares with these isolations cannot be on one card: MPS and time-slicing set how the driver has
    the card, and where one share is limited, all are."""
    return word != other and not {word, other} <= _BESIDE_EACH_OTHER and INSTANCES not in {word, other}


AUTO_ORDER: Final = ("mps", "limiter", "hami-core", "timeslicing", "none")
"""From the backend that can be got around least to none at all; those of other packages come before `none`.
Instances are no shares: a request that may have either says so by firstAvailable."""


@dataclass(frozen=True, slots=True)
class IsolationRefused:
    """Why a share is refused, and by the word of which field of GpuConfig."""

    field: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


def _other_words(word: str, owner: str, allowed: Sequence[str]) -> str:
    """What to do where the owner, a class or a node, does not allow the word."""
    others = " or ".join(allowed) or "whole cards"
    if owner == "class":
        return f"ask for {others}, or name a class that allows {word}"
    return f"ask for {others}, or have its kubelet plugin started with --allowed-isolation {word}"


@dataclass(frozen=True, slots=True)
class AskedIsolation:
    """What class and claim say for one request: the word, where there is one, and the class's policy.
    `uncounted` are those parts of the driver past a limit that the claim asks for and the class does not
    give. `auto`: the word was, or is, left to the order."""

    word: str | None = None
    policy: IsolationPolicy = IsolationPolicy()
    uncounted: DriverCapabilities = frozenset()
    auto: bool = False

    @property
    def wanted(self) -> str | None:
        """The isolation of a share, if it is not left to the node."""
        return self.word or self.policy.word

    def on(self, node: IsolationPolicy, *, share: bool) -> str:
        """The isolation that a device of the node gets. `share`: others can be on the card."""
        if not share:
            return NO_ISOLATION if self.word in (None, AUTO) else self.word
        word = self.wanted or node.word or NO_ISOLATION
        return (
            next((one for one in self.order if one in (node.allowed or ())), AUTO) if word == AUTO else word
        )

    @property
    def order(self) -> tuple[str, ...]:
        """Of `Auto`."""
        others = (word for word in isolations() if word not in ISOLATIONS)
        known = self.policy.allowed or (*AUTO_ORDER[:-1], *others, AUTO_ORDER[-1])
        return tuple(word for word in known if word != INSTANCES)

    def refusal(
        self, node: IsolationPolicy, *, share: bool, instance: bool = False
    ) -> IsolationRefused | None:
        """Why a device of the node does not do, with both words; None where it does. `instance`: it is one of
        MIG, which no other claim has a share of."""
        word = self.on(node, share=share)
        if instance and word in _OF_CARDS:
            return IsolationRefused(
                "isolation",
                f"isolation: requested {word}, which is done to a whole card, and this is an MIG instance",
                "leave isolation out, or ask for a share of a card",
            )
        if word == NO_ISOLATION and not share:
            return None
        if word == AUTO and node.allowed is not None:
            has = f"allows only {', '.join(node.allowed)}" if node.allowed else "allows no share at all"
            problem = f"isolation: requested {AUTO} ({', '.join(self.order)}), the node {has}"
            first = next(iter(self.order), INSTANCES)
            return IsolationRefused("isolation", problem, _other_words(first, "node", node.allowed))
        for owner, allowed in (
            (("class", self.policy.allowed), ("node", node.allowed)) if word != AUTO else ()
        ):
            if allowed is not None and word not in allowed:
                only = f"allows only {', '.join(allowed)}" if allowed else "allows no share at all"
                problem = f"isolation: requested {word}, the {owner} {only}"
                return IsolationRefused("isolation", problem, _other_words(word, owner, allowed))
        if share and word != NO_ISOLATION and self.uncounted:
            return IsolationRefused(
                "driverCapabilities",
                f"isolation: {', '.join(sorted(self.uncounted))} would take memory past the limit ({word}) of a share, so that "
                "only a class gives it",
                f"ask for {', '.join(sorted(COUNTED))}, or for a whole card",
            )
        return None


def asked_isolation(of_class: Iterable[object], of_claim: Iterable[object]) -> AskedIsolation:
    """What the parameters of a request's class and those of the claim for it, weakest first, say of
    isolation."""
    word = allowed = default = configured = None
    asked: DriverCapabilities = frozenset()
    given: DriverCapabilities = frozenset()
    auto = False
    for own in (entry for entry in of_claim if isinstance(entry, GpuConfig)):
        word, asked = own.isolation or word, own.driver_capabilities or asked
        auto = auto or own.isolation == AUTO
    for entry in (entry for entry in of_class if isinstance(entry, GpuConfig)):
        configured, given = entry.isolation or configured, entry.driver_capabilities or given
        if entry.allowed_isolation is not None:
            allowed, default = entry.allowed_isolation, entry.default_isolation
        default = entry.default_isolation or default
    uncounted = (asked - given) & UNCOUNTED
    auto = auto or AUTO in (configured, None if word else default)
    chosen = word or AUTO if configured == AUTO else configured or word
    return AskedIsolation(chosen, IsolationPolicy(allowed, default), uncounted, auto)
