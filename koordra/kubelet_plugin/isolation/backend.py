"""What an isolation backend is: the one interface of koordra's own and of other packages' (packages.py).

A backend is asked in this order, and never while another call for the same card is under way. Each call is
made in a thread of its own and has 15 seconds (card_calls.py); what it writes down after that is refused.

    fits         before anything is touched: why a share cannot be kept, as far as that can be seen. Pure
    card_start   of a backend that does something to the card itself (`Capabilities.per_card`): make the card
                 keep these shares. Called with each share that comes, and when one went and others are left
    prepare      make the share; answers what its containers get
    unprepare    undo that, also for a share that was never prepared, or half
    card_stop    undo `card_start`, once no share of the backend is left on the card

Every call is idempotent: the plugin may have been killed between any two, or within one, and calls again.
What a backend must know to go on or to undo it hands to `keep` before it does it: that is in the plugin's
checkpoint when `keep` returns, and comes back as the `journal` of the share, or of the card, in every later
call. `resume` comes once at every start of the plugin, after what was half prepared has been undone; `verify`
and `status` at once after it, and then every few seconds, for each card that the backend keeps.

Errors are PrepareErrors; one from `prepare` or `card_start` has everything of the claim undone. Of what lies
in koordra's state directory a backend mounts only `<its folder>/claims/<claim uid>/...`, read-only: the hook
refuses a container that has anything else of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, ContainerEdits
from koordra.node_state.strict_json import Pairs
from koordra.topology.location import DeviceNode

Keep: TypeAlias = Callable[[Pairs], None]
"""Writes down what a backend must know later, in place of what it had it write before. Raises
CheckpointError."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which limits of a share the backend enforces; the others are counted. `per_card`: it does something to
    the card itself, so that all shares of the card are its own; `hook`: its edits need koordra-cdi-hook;
    `pool`: it has devices that are on no node (pool `isolation/<name>`), which it makes for a claim on
    whatever node the pod is."""

    memory: bool = False
    cores: bool = False
    per_card: bool = False
    hook: bool = False
    pool: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """One claim's part of one GPU. `index` counts the claim's devices; `uuid` is the GPU's, empty for a claim
    of which only the uid is known, and for a device that is on no node. `memory_bytes` None: all of the card.
    `cores`: percent reserved, None: none. `journal` is what the backend had written down for it. `of_card`:
    all that the claim has of the card, as one share, where that is more; `cards`: the GPUs, and instances of
    them, that the claim has."""

    claim_uid: str
    index: int
    device: str
    uuid: str
    memory_bytes: int | None
    cores: int | None
    namespace: str = ""
    journal: Pairs = ()
    of_card: Share | None = None
    cards: tuple[str, ...] = ()

    @property
    def kept(self) -> Share:
        """What is kept: a claim's shares of one card are one, with the sum of what they are."""
        return self.of_card or self


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, or an instance of one, with the shares on it that the backend keeps: those of prepared claims,
    and the one that comes."""

    device: str
    uuid: str
    shares: tuple[Share, ...] = ()
    journal: Pairs = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What a backend keeps on the node when the plugin starts; cards without shares are stopped soon.
    `unknown` are devices of claims of which it
    was lost with the checkpoint who keeps them."""

    shares: tuple[Share, ...] = ()
    cards: tuple[Card, ...] = ()
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Realised:
    """A share that was made: what its containers get. A device that came into being by it has the UUID and
    the device nodes that nobody knew before."""

    edits: ContainerEdits = NO_EDITS
    uuid: str | None = None
    nodes: tuple[DeviceNode, ...] | None = None


class UndoneLater(PrepareError):
    """Raised by `unprepare` where the claim may end and what is left cannot be undone now: `card_stop` is
    called for the share's device, with the share's journal, until it succeeds."""


class IsolationBackend(ABC):
    """Only `prepare` and `unprepare` have to be there."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The word in `GpuConfig.isolation`."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def unavailable(self) -> str | None:
        """What this node lacks that the backend needs, and what to do about it: the node does not offer it
        then. None where all is there."""
        return None

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        """Why the backend cannot keep the share beside the others of the card; None where it can."""
        del share, config, card
        return None

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        """Make the card keep its shares. `config` is that of the share that comes, None where one went;
        `keep` is for the card's journal."""
        del card, config, keep

    def card_stop(self, card: Card) -> None:
        """Leave the card as it was; also one that was never started, or by whom nobody knows."""
        del card

    @abstractmethod
    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        """Make the share. `keep` is for the share's journal."""

    @abstractmethod
    def unprepare(self, share: Share) -> None:
        """Undo it. Its containers have ended."""

    def resume(self, held: Held | None) -> None:
        """Go on with what an earlier process of the plugin left. None: it is not known what the node's claims
        hold, and nothing may be taken away."""
        del held

    def suspend(self, card: Card) -> None:
        """The plugin ends in good order: until the next one looks (`verify`), nobody looks after the card,
        which is to fail closed meanwhile."""
        del card

    def verify(self, card: Card) -> str | None:
        """What is wrong with how the card is kept, after mending what can be mended without harm to what
        runs; None where all is well."""
        del card
        return None

    def status(self, card: Card) -> Mapping[str, str]:
        """What people may want to know of the card, in a word or two each: the condition CardKept of its
        claims tells it, while nothing is wrong."""
        del card
        return {}
