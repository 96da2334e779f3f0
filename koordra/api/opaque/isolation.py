"""Isolation of GPU shares: the operator's policy, and the one rule that admission, allocation and Prepare
apply.

The operator says which isolation backends keep shares of a card, and which one where nothing asks for any, in
two places:

    node    `koordra kubelet-plugin --allowed-isolation --default-isolation`, published as attributes of each
            GPU
    class   `allowedIsolation` and `defaultIsolation` of GpuConfig in a DeviceClass, or in a ResourceClass's
            policy

The word for a share, first that is there:

    isolation of the class's configuration > of the claim's > default of the class > default of the node

It must be allowed by the class, where that says anything, and by the node; otherwise the share is refused. A
node allows the limiter where nothing is said. `none` (a share without limits) stands alone in a node's list:
where one tenant of a card is limited, all are. So a class may demand unlimited shares, and gets them on nodes
that give no others.

A whole card, or one whose slots a claim takes all, is no share: nobody else is on it, and `none` is what it
has without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.api.opaque.parameters import NO_ISOLATION, GpuConfig, isolations
from koordra.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """What an operator says. `allowed` in order of preference, None: nothing said; `default`: the first of
    them if None."""

    allowed: tuple[str, ...] | None = None
    default: str | None = None

    @property
    def word(self) -> str | None:
        """The isolation of a share for which nothing asks for any."""
        return self.default or (self.allowed[0] if self.allowed else None)

    def among(self, available: Collection[str]) -> IsolationPolicy:
        """What is left of a node's policy with the backends that it has."""
        allowed = tuple(word for word in self.allowed or () if word in available)
        return IsolationPolicy(allowed, self.default if self.default in allowed else None)

    def attributes(self) -> dict[str, bool]:
        """What a node publishes of its policy. `none` is there either way, as the sign of a node that has a
        policy."""
        if self.allowed is None:
            return {}
        return {attribute(NO_ISOLATION): False} | {attribute(word): True for word in self.allowed}


LIMITED: Final = IsolationPolicy(("limiter",))
"""The policy of a node whose operator says nothing."""


def node_policy(allowed: Iterable[str], default: str | None = None) -> IsolationPolicy:
    """The policy that an operator gives a node. Raises InvalidInput."""
    words = tuple(dict.fromkeys(allowed)) or LIMITED.allowed or ()
    for word in (*words, *((default,) if default else ())):
        if word not in isolations():
            known = ", ".join(isolations())
            raise InvalidInput(
                f"no backend is called {word!r}", field="--allowed-isolation", remedy=f"use {known}"
            )
    if default is not None and default not in words:
        raise InvalidInput(
            f"{default} is not among {', '.join(words)}", field="--default-isolation", remedy="allow it too"
        )
    if NO_ISOLATION in words and len(words) > 1:
        raise InvalidInput(
            f"{NO_ISOLATION} beside {', '.join(word for word in words if word != NO_ISOLATION)}: where one share of a card "
            "is limited, all are",
            field="--allowed-isolation",
            remedy=f"give nodes for unlimited shares a policy of their own, {NO_ISOLATION} alone",
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


@dataclass(frozen=True, slots=True)
class AskedIsolation:
    """What class and claim say for one request: the word, where there is one, and the class's policy."""

    word: str | None = None
    policy: IsolationPolicy = IsolationPolicy()

    def on(self, node: IsolationPolicy, *, share: bool) -> str:
        """The isolation that a device of the node gets. `share`: others can be on the card."""
        if not share:
            return self.word or NO_ISOLATION
        return self.word or self.policy.word or node.word or NO_ISOLATION

    def refusal(self, node: IsolationPolicy, *, share: bool) -> str | None:
        """Why a device of the node does not do, with both words; None where it does."""
        word = self.on(node, share=share)
        if word == NO_ISOLATION and not share:
            return None
        for owner, allowed in (("class", self.policy.allowed), ("node", node.allowed)):
            if allowed is not None and word not in allowed:
                return f"isolation: requested {word}, the {owner} allows {', '.join(allowed) or 'no share at all'}"
        return None


def asked_isolation(of_class: Iterable[object], of_claim: Iterable[object]) -> AskedIsolation:
    """What the parameters of a request's class and those of the claim for it, weakest first, say of
    isolation."""
    word = allowed = default = None
    for own in (entry for entry in of_claim if isinstance(entry, GpuConfig)):
        word = own.isolation or word
    configured = None
    for entry in (entry for entry in of_class if isinstance(entry, GpuConfig)):
        configured = entry.isolation or configured
        if entry.allowed_isolation is not None:
            allowed, default = entry.allowed_isolation, entry.default_isolation
        default = entry.default_isolation or default
    return AskedIsolation(configured or word, IsolationPolicy(allowed, default))
