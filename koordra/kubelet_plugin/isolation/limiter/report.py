"""What the limiters of this node's claims report, for metrics, for the claim's status and for the
verification of containers.

The figures come from the claims' regions (usage.py). A tenant writes `usage`, so they are its own statement:
good for charts and for finding a limiter that did not start, not as evidence. What the node writes into
`policy` (bytes beyond the ledger, processes outside of it) is not the tenant's.

    koordra_limiter_used_bytes, koordra_limiter_limit_bytes   by claim and GPU; a share without a limit has no
                                                              limit
    koordra_limiter_unseen_bytes                              what of it the node found beyond the claim's
                                                              ledger
    koordra_limiter_context_bytes                             what is kept for a context
    koordra_limiter_denied_requests                           requests over the limit, by claim and GPU
    koordra_limiter_turned_away_processes                     processes that got no CUDA, ever, by claim
    koordra_limiter_claims                                    how many wait, enforce, turned a process away,
                                                              are bypassed or damaged

The verdict on a claim is the condition `Limited` of its GPUs in status.devices:

    Unknown  NoProcessYet     no process of the claim has used CUDA yet
    True     Enforcing        every process that did is limited
    False    ProcessRefused   a process could not be limited, and got no CUDA; for as long as it lives, and a
                              minute at least
    False    OutsideLimiter   a process computes on the card without a limit
    False    OverLimit        by the driver's own figures its processes have more than the share (overuse.py)
    False    RegionDamaged    the claim's processes have made their region unreadable
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse
from koordra.metrics import Metrics


@dataclass(frozen=True, slots=True)
class LimiterVerdict:
    """`enforced` None: not known yet."""

    handshake: str
    enforced: bool | None
    reason: str
    message: str


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


def overused(message: str) -> LimiterVerdict:
    return replace(_VERDICTS["overused"], message=message)


def _verdict(use: ClaimUse) -> LimiterVerdict:
    verdict = _VERDICTS[use.handshake]
    if use.handshake != "enforcing" or not use.turned_away:
        return verdict
    return replace(verdict, message=f"{verdict.message}; refused before, and gone: {use.turned_away}")


def verdicts(read: Mapping[str, ClaimUse]) -> dict[str, LimiterVerdict]:
    return {uid: _verdict(use) for uid, use in read.items()}


def enforces(claims: Path, uid: str) -> bool | None:
    """Whether the claim's limiter enforces; None without a limiter, or before a process used CUDA."""
    found = verdict(claims, uid)
    return found.enforced if found else None


_DEVICE_GAUGES: Final = {
    "used_bytes": "GPU memory that a limited claim uses.",
    "limit_bytes": "GPU memory that a limited claim may use.",
    "unseen_bytes": "GPU memory of a limited claim beyond its ledger.",
    "context_bytes": "GPU memory that is kept for each context.",
    "denied_requests": "Requests of a limited claim that were over its limit.",
}


class LimiterMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._devices = {
            name: metrics.gauge(f"koordra_limiter_{name}", text, ("claim", "gpu"))
            for name, text in _DEVICE_GAUGES.items()
        }
        self._turned_away = metrics.gauge(
            "koordra_limiter_turned_away_processes",
            "Processes of a limited claim that could not be limited, and got no CUDA.",
            ("claim",),
        )
        self._handshakes = metrics.gauge(
            "koordra_limiter_claims", "Claims by what their limiter says.", ("state",)
        )
        self.observe({}, ())

    def observe(self, read: Mapping[str, ClaimUse], verdicts: Iterable[LimiterVerdict]) -> None:
        """Set the series of these claims; those of claims that are gone are removed."""
        for gauge in (*self._devices.values(), self._turned_away):
            gauge.clear()
        for uid, use in read.items():
            self._turned_away.labels(uid).set(use.turned_away)
            for device in use.devices:
                for gauge, figure in zip(
                    self._devices.values(),
                    (device.used, device.limit, device.unseen, device.context_bytes, device.denied),
                    strict=True,
                ):
                    if figure is not None:
                        gauge.labels(uid, device.uuid).set(figure)
        states = [each.handshake for each in verdicts]
        for state in HANDSHAKES:
            self._handshakes.labels(state).set(states.count(state))
