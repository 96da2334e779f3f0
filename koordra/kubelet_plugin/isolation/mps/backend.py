"""Backend `mps`: one MPS control daemon for each card that has shares of it.

    <state>/mps/cards/<device>/pipe     its sockets; read-only in the containers of the card's claims alone
    <state>/mps/cards/<device>/shm      /dev/shm of its servers and of those containers
    <state>/mps/cards/<device>/log

**Fail closed.** Where CUDA reaches no daemon it runs without MPS, and without limits. So the card's compute
mode is PROHIBITED until the daemon answers, and EXCLUSIVE_PROCESS then, in which only its server may hold the
card. A daemon that is gone is started again, as soon as the plugin runs and every few seconds (`verify`), the
card being PROHIBITED first. Afterwards the card has the mode that it had.

**Limits.** Server-side limits are the same for all clients, and each client may lower them for itself. So the
daemon's are those of the largest share on the card, and each container's own come by its environment: a
program that removes its variables has the largest share of the card, not its own. The limits hold for each
process. Shares of one card that are equal are kept exactly.

**One fault domain.** A fatal fault of one client ends all clients of the card. So the claims of a card are of
one namespace, unless the operator says that namespaces share (`--mps-shared`). A process connects to one
daemon: a claim has shares of one card only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from koordra.api.opaque.isolation import STRANGERS, strangers
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
from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL, Limits, MpsDaemon, mebibytes
from koordra.kubelet_plugin.isolation.none import figures
from koordra.kubelet_plugin.isolation.own_file_system import make_folder, remove_tree
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings, ComputeMode
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.logs import get_logger

log = get_logger(__name__)

IN_CONTAINER: Final = "/run/koordra/mps"
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

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        del config
        if not share.uuid.startswith("GPU-"):
            return "isolation mps: a whole card has a compute mode, and no instance of one"
        if len(share.cards) > 1:
            return (
                f"isolation mps: the claim has shares of {len(share.cards)} cards, and a process is the client of one MPS daemon; "
                "make a claim for each card, for containers of their own"
            )
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
            self._daemon(card).quit()
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
        folder = self._folder / share.device
        kept, env = share.kept, [("CUDA_MPS_PIPE_DIRECTORY", f"{IN_CONTAINER}/pipe")]
        if kept.memory_bytes is not None:
            env.append(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={mebibytes(kept.memory_bytes)}"))
        if kept.cores is not None:
            env.append(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(kept.cores)))
        mounts = (
            Mount(str(folder / "pipe"), f"{IN_CONTAINER}/pipe"),
            Mount(str(folder / "shm"), "/dev/shm", _READ_WRITE),
        )
        return Realised(figures(share) + ContainerEdits(env=tuple(env), mounts=mounts))

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
        daemon = self._daemon(card)
        if not daemon.answers:
            log.error("mps_daemon_gone", device=card.device)
            self._run_daemon(card)
        mode = self._cards.compute_mode(card.uuid)
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            self._cards.set_compute_mode(card.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            if mode is ComputeMode.PROHIBITED:  # by a plugin that has ended
                return None
            return f"its compute mode was {mode}, set by somebody else: programs could run past MPS"
        for server in daemon.servers():
            state = daemon.state(server)
            if state == "FAULT":
                return f"MPS server {server} is in {state}: a client had a fatal error, and no new one may come until all have ended"
        return None

    def status(self, card: Card) -> Mapping[str, str]:
        daemon = self._daemon(card)
        states = Counter(daemon.state(server) for server in daemon.servers())
        found = {"servers": " and ".join(f"{count} {state}" for state, count in sorted(states.items()))}
        return found if states else {"servers": "none, since nobody computes"}

    def _run_daemon(self, card: Card) -> None:
        """One that answers goes on, for the shares that there are now."""
        daemon = self._daemon(card)
        if not daemon.answers:
            self._cards.set_compute_mode(card.uuid, ComputeMode.PROHIBITED)
            try:
                for folder, mode in ((daemon.pipe, 0o755), (daemon.log, 0o700)):
                    folder.mkdir(parents=True, exist_ok=True, mode=mode)
                why_not = self._make_shm(daemon.shm)
                if why_not is not None:
                    raise PrepareError(f"isolation mps: {daemon.shm} would fill the node's disk: {why_not}")
                self._uuid_file(card.device).write_text(card.uuid)
            except OSError as error:
                raise PrepareError(f"isolation mps: {error.filename}: {error.strerror}") from error
            daemon.start()
        daemon.limit(_largest(card))
        self._cards.set_compute_mode(card.uuid, ComputeMode.EXCLUSIVE_PROCESS)

    def _uuid_file(self, device: str) -> Path:
        """There from before the first start of the card's daemon until the card is as it was."""
        return self._folder / device / "uuid"

    def _daemon(self, card: Card) -> MpsDaemon:
        folder = self._folder / card.device
        return MpsDaemon(self._programs, card.uuid, folder / "pipe", folder / "log", folder / "shm")


def _largest(card: Card) -> Limits:
    kept = [share.kept for share in card.shares]
    memory = [share.memory_bytes for share in kept]
    return Limits(
        threads=max((100 if share.cores is None else share.cores for share in kept), default=100),
        memory_bytes=None
        if None in memory or not memory
        else max(each for each in memory if each is not None),
    )
