"""What the limiters of this node's claims report, for metrics, for the claim's status and for the
verification of containers.

The figures come from the claims' regions (usage.py). A tenant writes `usage`, so they are its own statement:
good for charts and for finding a limiter that did not start, not as evidence. What the node writes into
`policy` (bytes beyond the ledger, processes outside of it) is not the tenant's.

The figures are a claim's, on each of its GPUs. Where one container holds the claim they carry its name; where
several do, only what these have in common: the limit is theirs together, and must not be added up twice.

The verdict on a claim is the condition `Limited` of its GPUs in status.devices:

    Unknown  NoProcessYet     no process of the claim has used CUDA yet
    True     Enforcing        every process that did is limited
    False    ProcessRefused   a process could not be limited, and got no CUDA; for as long as it lives, and a
                              minute at least
    False    OutsideLimiter   a process computes on the card without a limit
    False    OverLimit        by the driver's own figures its processes have more than the share (overuse.py)
    False    OverTime         by the driver's own samples its kernels have had more time than the share
                              (overtime.py)
    False    RegionDamaged    the claim's processes have made their region unreadable
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse, mib
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse
from koordra.metrics import Metrics, bounded, counter, gauge
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.granted_claims import ContainerName


@dataclass(frozen=True, slots=True)
class LimiterVerdict:
    """`enforced` None: not known yet. `paced`: GPUs (by UUID) whose device time is limited, too, and to how
    much of it, in 1/100 %."""

    handshake: str
    enforced: bool | None
    reason: str
    message: str
    paced: tuple[tuple[str, int], ...] = ()

    def percent(self, uuid: str | None) -> int:
        """Of the time of this GPU or MIG instance; 0: it is not limited."""
        card = "" if uuid is None else "GPU-" + uuid.partition("-")[2].lower()
        return dict(self.paced).get(card, 0) // 100


_VERDICTS: Final = {
    each.handshake: each
    for each in (
        LimiterVerdict("waiting", None, "NoProcessYet", "no process of the claim has used CUDA yet"),
        LimiterVerdict(
            "enforcing", True, "Enforcing", "the memory limit holds for every process that has used CUDA"
        ),
        LimiterVerdict("refused", False, "ProcessRefused", "a process could not be limited, and got no CUDA"),
        LimiterVerdict(
            "bypassed", False, "OutsideLimiter", "a process computes on the GPU without the memory limit"
        ),
        LimiterVerdict("overused", False, "OverLimit", "the claim's processes have more than its share"),
        LimiterVerdict(
            "overtime", False, "OverTime", "the claim's kernels have had more time than its share"
        ),
        LimiterVerdict(
            "damaged", False, "RegionDamaged", "the claim's processes have damaged the region of the limiter"
        ),
    )
}


HANDSHAKES: Final = tuple(_VERDICTS)


def read_all(claims: Path) -> dict[str, ClaimUse]:
    """All claims (by uid) of this node."""
    found = {}
    for folder in sorted(claims.iterdir()) if claims.is_dir() else []:
        use = _read(folder)
        if use is not None:
            found[folder.name] = use
    return found


def _read(folder: Path) -> ClaimUse | None:
    """None where the node's part is not there, before or after: it is made last and taken away first, so the
    region comes or goes."""
    known = None
    try:
        known = usage.without_processes(folder)
        return usage.read(folder)
    except NodeError:
        return known if (folder / "policy").exists() else None


def verdict(claims: Path, uid: str) -> LimiterVerdict | None:
    use = _read(claims / uid)
    return _verdict(use) if use else None


def overused(over: Overuse | OverTime, *, before: LimiterVerdict) -> LimiterVerdict:
    """The verdict on a claim that has more than its share. More time than it should have is told of a claim
    whose limiter says that all is well; else that is why."""
    if isinstance(over, OverTime) and not before.enforced:
        return before
    found = next(each for each in _VERDICTS.values() if each.reason == over.reason)
    return replace(found, message=str(over), paced=before.paced)


def _verdict(use: ClaimUse) -> LimiterVerdict:
    paced = tuple((device.uuid, device.rate) for device in use.devices if device.rate)
    verdict = replace(_VERDICTS[use.handshake], paced=paced)
    for device in use.devices:
        # What a context takes is an estimate until one was seen, so it is told, and not refused.
        if device.limit is not None and device.limit < device.context_bytes and not verdict.enforced:
            text = (
                f"{verdict.message}; {mib(device.limit)} of {device.uuid} are less than a context takes there"
            )
            verdict = replace(verdict, message=f"{text} (about {mib(device.context_bytes)}): ask for more")
    if use.handshake != "enforcing" or not use.turned_away:
        return verdict
    return replace(verdict, message=f"{verdict.message}; refused before, and gone: {use.turned_away}")


def verdicts(read: Mapping[str, ClaimUse]) -> dict[str, LimiterVerdict]:
    return {uid: _verdict(use) for uid, use in read.items()}


def enforces(claims: Path, uid: str) -> bool | None:
    """Whether the claim's limiter enforces; None without a limiter, or before a process used CUDA."""
    found = verdict(claims, uid)
    return found.enforced if found else None


_OF_CLAIM: Final = {
    "namespace": bounded("those of the node's limited claims"),
    "claim": bounded("the node's limited claims, by name"),
    "pod": bounded("the pod that holds the claim; empty for none, or several"),
    "container": bounded("the container that holds the claim; empty for none, or several"),
}
_OF_GPU: Final = {**_OF_CLAIM, "UUID": bounded("the claim's GPUs, as NVML and dcgm-exporter name them")}

LIMIT: Final = gauge(
    "koordra_limiter_limit_bytes",
    "GPU memory that a limited claim may use; none for a share without a limit of memory",
    **_OF_GPU,
)
USED: Final = gauge(
    "koordra_limiter_used_bytes", "GPU memory that a limited claim uses, what is unseen included", **_OF_GPU
)
PEAK: Final = gauge(
    "koordra_limiter_peak_bytes",
    "The most that used_bytes has been since the claim was prepared, or this process started",
    **_OF_GPU,
)
UNSEEN: Final = gauge(
    "koordra_limiter_unseen_bytes",
    "GPU memory of a limited claim that the node found in use beyond the limiter's ledger",
    **_OF_GPU,
)
CONTEXT: Final = gauge(
    "koordra_limiter_context_bytes", "GPU memory that is kept for each context of a process", **_OF_GPU
)
DENIED: Final = counter(
    "koordra_limiter_denied_requests_total",
    "Requests for memory that were over the limit, by the claim's own count",
    **_OF_GPU,
)
RATE: Final = gauge(
    "koordra_limiter_device_time_ratio",
    "Part of the GPU's time that the launches of a limited claim are held to; none for a share whose cores are only counted",
    **_OF_GPU,
)
DEVICE_TIME: Final = counter(
    "koordra_limiter_device_seconds_total",
    "GPU time that the launches of such a claim were charged, by its own measurements",
    **_OF_GPU,
)
SEEN_TIME: Final = counter(
    "koordra_limiter_seen_device_seconds_total",
    "GPU time in which the driver saw kernels of such a claim, since the node began to look; 0 where the driver does not tell",
    **_OF_GPU,
)
WAITED: Final = counter(
    "koordra_limiter_launch_wait_seconds_total",
    "Time that launches of such a claim were held back, summed over threads, by the claim's own count",
    **_OF_GPU,
)
TURNED_AWAY: Final = counter(
    "koordra_limiter_turned_away_processes_total",
    "Processes of a limited claim that could not be limited, and got no CUDA",
    **_OF_CLAIM,
)
BEHIND: Final = gauge(
    "koordra_limiter_processes_behind",
    "Living processes of a limited claim that have not acknowledged the last change of its limits; one that makes no call does so "
    "with its next",
    **_OF_CLAIM,
)
LIMITED: Final = gauge(
    "koordra_limiter_claims", "Limited claims of this node by what their limiter says", state=HANDSHAKES
)


class Holder(NamedTuple):
    """Whose a claim is, for labels."""

    namespace: str = ""
    claim: str = ""
    pod: str = ""
    container: str = ""


def holder_of(uid: str, ref: ClaimRef | None, containers: Sequence[ContainerName]) -> Holder:
    """`containers` that hold the claim. What they do not have in common stays empty; a claim whose name is
    not known is called by its uid."""
    namespace, claim = ("", uid) if ref is None else (ref.namespace, ref.name)
    pods, names = {each.pod for each in containers}, {each[1:] for each in containers}
    return Holder(
        namespace,
        claim,
        next(iter(pods)) if len(pods) == 1 else "",
        containers[0].container if len(names) == 1 else "",
    )


class LimiterMetrics:
    """`ref_of` a claim, by its uid; `containers`: those that hold a claim, by its uid."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        ref_of: Callable[[str], ClaimRef | None] = lambda _uid: None,
        containers: Callable[[], Mapping[str, Sequence[ContainerName]]] = dict,
    ) -> None:
        self._ref_of, self._containers = ref_of, containers
        self._known: dict[str, ClaimRef | None] = {}
        self._peaks: dict[tuple[str, str], int] = {}
        self._limit, self._used, self._peak = map(metrics.table, (LIMIT, USED, PEAK))
        self._unseen, self._context = map(metrics.table, (UNSEEN, CONTEXT))
        self._denied, self._turned_away = map(metrics.table, (DENIED, TURNED_AWAY))
        self._states, self._behind = metrics.table(LIMITED), metrics.table(BEHIND)
        self._rate, self._device_time, self._waited = map(metrics.table, (RATE, DEVICE_TIME, WAITED))
        self._seen_time = metrics.table(SEEN_TIME)

    def observe(self, read: Mapping[str, ClaimUse], verdicts: Iterable[LimiterVerdict]) -> None:
        """Set the series of these claims; those of claims that are gone are removed."""
        holders = self._holders(read)
        shares = [(uid, device) for uid, use in read.items() for device in use.devices]
        self._peaks = {
            (uid, device.uuid): max(device.used, self._peaks.get((uid, device.uuid), 0))
            for uid, device in shares
        }
        rows = [((*holders[uid], device.uuid), uid, device) for uid, device in shares]
        self._limit.set({row: device.limit for row, _, device in rows if device.limit is not None})
        self._used.set({row: device.used for row, _, device in rows})
        self._peak.set({row: self._peaks[uid, device.uuid] for row, uid, device in rows})
        self._unseen.set({row: device.unseen for row, _, device in rows})
        self._context.set({row: device.context_bytes for row, _, device in rows})
        self._denied.set({row: device.denied for row, _, device in rows})
        paced = [(row, device) for row, _, device in rows if device.rate]
        self._rate.set({row: device.rate / 10_000 for row, device in paced})
        self._device_time.set({row: device.device_ns / 1e9 for row, device in paced})
        self._seen_time.set({row: device.seen_ns / 1e9 for row, device in paced})
        self._waited.set({row: device.waited_ns / 1e9 for row, device in paced})
        self._turned_away.set({holders[uid]: use.turned_away for uid, use in read.items()})
        self._behind.set({holders[uid]: len(use.behind) for uid, use in read.items()})
        self._states.set(Counter((each.handshake,) for each in verdicts))

    def _holders(self, uids: Iterable[str]) -> dict[str, Holder]:
        containers = self._containers()
        self._known = {uid: self._known.get(uid) or self._ref_of(uid) for uid in uids}
        return {uid: holder_of(uid, ref, containers.get(uid, ())) for uid, ref in self._known.items()}
