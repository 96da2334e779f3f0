"""Backend `mps`: one MPS control daemon for each card that has shares of it.

    <state>/mps/cards/<device>/pipe     its sockets; read-only in the containers of the card's claims alone
    <state>/mps/cards/<device>/shm      /dev/shm of its servers and of those containers
    <state>/mps/cards/<device>/log

**Fail closed.** Where CUDA reaches no daemon it runs without MPS, and without limits. So the card's compute
mode is PROHIBITED until the daemon answers, and EXCLUSIVE_PROCESS then, in which only its server may hold the
card. A daemon that is gone is started again, as soon as the plugin runs and every few seconds (`verify`), the
card being PROHIBITED first. Afterwards the card has the mode that it had.

**Limits.** Where the driver has the third version of MPS's protocol each claim has its own at the server
(named_server). With the second one the server's are the largest share's, and the container's own come by its
environment, which a program may remove (one_server): shares that are equal are kept exactly. A card goes by
one version until it is given back. The limits hold for each process.

**One fault domain.** A fatal fault of one client ends all clients of the card. So the claims of a card are of
one namespace, unless the operator says that namespaces share (`--mps-shared`). A process connects to one
daemon: a claim has shares of one card only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from koordra.api.opaque.isolation import ONE_CARD, ONE_CARD_REMEDY, STRANGERS, strangers
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Mount
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    Held,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL, V2, V3, ControlDaemon, protocol_of
from koordra.kubelet_plugin.isolation.mps.named_server import SERVER, NamedServer
from koordra.kubelet_plugin.isolation.mps.one_server import OneServer
from koordra.kubelet_plugin.isolation.none import figures
from koordra.kubelet_plugin.isolation.own_file_system import make_folder, remove_tree
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings, ComputeMode
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.logs import get_logger
from koordra.node_state.layout import mps_namespace

log = get_logger(__name__)

IN_CONTAINER: Final = "/run/koordra/mps"
_LONGEST_SOCKET: Final = 107
"""Bytes of a path (unix(7))."""
_MODE: Final = "computeMode"
_SHM: Final = "5%"
"""Of the node's memory: what containers leave there stays until the card has no share."""
_READ_WRITE: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class MpsIsolation(IsolationBackend):
    """`shared`: claims of several namespaces may be on one card. `make_shm` makes the folder that is to be
    /dev/shm, and answers why it is no file system of its own."""

    name: Final = "mps"
    capabilities = Capabilities(memory=True, cores=True, per_card=True)

    def __init__(
        self,
        state: Path,
        programs: DriverPrograms,
        cards: CardSettings,
        *,
        shared: bool = False,
        make_shm: Callable[[Path], str | None] = lambda folder: make_folder(folder, f"mode=1777,size={_SHM}"),
    ) -> None:
        self._folder = state / "mps" / "cards"
        self._programs, self._cards = programs, cards
        self._shared, self._make_shm = shared, make_shm

    @property
    def unavailable(self) -> str | None:
        return self._programs.why_not(CONTROL) or self._cards.unavailable

    @property
    def protocol(self) -> int | None:
        """By which the next card goes; None where nothing answers."""
        try:
            return int(protocol_of(self._programs)) if self.unavailable is None else None
        except PrepareError as error:
            log.error("mps_protocol_unknown", error=str(error))
            return None

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        del config
        if not share.uuid.startswith("GPU-"):
            return "isolation mps: a whole card has a compute mode, and no instance of one"
        if len(share.cards) > 1:
            return f"isolation mps: the claim has shares of {len(share.cards)} cards, and {ONE_CARD}; {ONE_CARD_REMEDY}"
        others = {each.namespace for each in card.shares}
        found = strangers(self.name, share.namespace, others, shared=self._shared)
        return f"{STRANGERS} {found}" if found else None

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        del config
        if _MODE not in dict(card.journal):
            # Its present mode is koordra's own where the folder is left of a lost checkpoint.
            left = self._uuid_file(card.device).exists()
            keep(((_MODE, ComputeMode.DEFAULT if left else self._cards.compute_mode(card.uuid)),))
        self._run_daemon(card)

    def card_stop(self, card: Card) -> None:
        folder = self._folder / card.device
        if folder.exists():
            self._daemon(card.device, card.uuid).quit()
        mode = dict(card.journal).get(_MODE)
        if mode is None and self._uuid_file(card.device).exists():
            mode = ComputeMode.DEFAULT  # of a lost checkpoint
        if mode is not None:
            self._cards.restore(card.uuid, ComputeMode(mode))
        try:
            remove_tree(folder, ["shm"])
        except (OSError, NodeError) as error:
            raise PrepareError(f"isolation mps: {folder} stays: {error}") from error

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del config, keep
        daemon = self._daemon(share.device, share.uuid)
        sockets, inside = daemon.sockets(share), f"{IN_CONTAINER}/pipe"
        if not (sockets / "control").exists():
            raise PrepareError(f"isolation mps: {CONTROL} made no socket in {sockets}")
        mounts = (Mount(str(sockets), inside), Mount(str(daemon.shm), "/dev/shm", _READ_WRITE))
        env = (("CUDA_MPS_PIPE_DIRECTORY", inside), *daemon.variables(share))
        return Realised(figures(share) + ContainerEdits(env=env, mounts=mounts))

    def unprepare(self, share: Share) -> None:
        """What there is of it is the card's."""

    def resume(self, held: Held | None) -> None:
        """A daemon that went with the plugin's container is started again by the first look. Folders of cards
        that nobody has are left of a plugin that lost its checkpoint; they stay while claims have the card
        that may be its clients."""
        if held is None or not self._folder.is_dir():
            return
        kept = held.unknown | {card.device for card in held.cards}
        for folder in sorted(self._folder.iterdir()):
            if folder.name not in kept:
                file = self._uuid_file(folder.name)
                try:
                    self.card_stop(Card(folder.name, file.read_text() if file.exists() else ""))
                except (OSError, PrepareError) as error:
                    log.error("mps_card_not_stopped", device=folder.name, error=str(error))

    def suspend(self, card: Card) -> None:
        """The daemon may go with the plugin's container, and the first process that comes then would have the
        card without limits."""
        self._cards.set_compute_mode(card.uuid, ComputeMode.PROHIBITED)

    def verify(self, card: Card) -> str | None:
        """Raises PrepareError for a daemon that cannot be started again."""
        daemon = self._daemon(card.device, card.uuid)
        if not daemon.answers:
            log.error("mps_daemon_gone", device=card.device)
            self._run_daemon(card)
        mode = self._cards.compute_mode(card.uuid)
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            self._cards.set_compute_mode(card.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            if mode is ComputeMode.PROHIBITED:  # by a plugin that has ended
                return None
            return f"its compute mode was {mode}, set by somebody else: programs could run past MPS"
        for server, state in daemon.states().items():
            if "fault" in state.lower():
                return f"MPS server {server} is in {state}: a client had a fatal error, and no new one may come until all have ended"
        return None

    def status(self, card: Card) -> Mapping[str, str]:
        daemon = self._daemon(card.device, card.uuid)
        states = Counter(daemon.states().values())
        found = " and ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return {
            "servers": found or "none, since nobody computes",
            "limits": _LIMITS[self._protocol(card.device)],
        }

    def _run_daemon(self, card: Card) -> None:
        """One that answers goes on, for the shares that there are now."""
        if not self._daemon(card.device, card.uuid).answers:
            self._cards.set_compute_mode(card.uuid, ComputeMode.PROHIBITED)
            self._make_folders(card)
            self._daemon(card.device, card.uuid).start()
        daemon = self._daemon(card.device, card.uuid)
        if daemon.needs_the_card:
            self._cards.set_compute_mode(card.uuid, ComputeMode.EXCLUSIVE_PROCESS)
        daemon.keep(card.shares)
        self._cards.set_compute_mode(card.uuid, ComputeMode.EXCLUSIVE_PROCESS)

    def _make_folders(self, card: Card) -> None:
        """Which protocol the card goes by is written down before its first daemon may start."""
        uuid, protocol = self._uuid_file(card.device), self._protocol_file(card.device)
        try:
            uuid.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            if not uuid.exists():
                protocol.write_text(self._best_protocol(card))
            daemon = self._daemon(card.device, card.uuid)
            for folder, mode in ((daemon.pipe, 0o755), (daemon.log, 0o700)):
                folder.mkdir(exist_ok=True, mode=mode)
            why_not = self._make_shm(daemon.shm)
            if why_not is not None:
                raise PrepareError(f"isolation mps: {daemon.shm} would fill the node's disk: {why_not}")
            uuid.write_text(card.uuid)
        except OSError as error:
            raise PrepareError(f"isolation mps: {error.filename}: {error.strerror}") from error

    def _uuid_file(self, device: str) -> Path:
        """There from before the first start of the card's daemon until the card is as it was."""
        return self._folder / device / "uuid"

    def _protocol_file(self, device: str) -> Path:
        """Not there for a daemon of before there was a third version."""
        return self._folder / device / "protocol"

    def _best_protocol(self, card: Card) -> str:
        """Sockets of the third have long paths, where the state directory is far down too long ones."""
        folder = self._folder / card.device / "v3" / SERVER
        longest = max(len(str(folder / mps_namespace(share.claim_uid) / "control")) for share in card.shares)
        return protocol_of(self._programs) if longest <= _LONGEST_SOCKET else V2

    def _protocol(self, device: str) -> str:
        """By which the card's daemon goes until the card is given back."""
        file = self._protocol_file(device)
        return file.read_text() if file.exists() else V2

    def _daemon(self, device: str, uuid: str) -> ControlDaemon:
        folder = self._folder / device
        made, pipe = (NamedServer, "v3") if self._protocol(device) == V3 else (OneServer, "pipe")
        return made(self._programs, uuid, folder / pipe, folder / "log", folder / "shm")


_LIMITS: Final = {
    V2: "the largest share's (MPS v2)",
    V3: "each claim's own (MPS v3)",
}
