"""Drift: differences between what a running container has and what it was granted. Pure.

A runtime that gets no answer in time, or has no hook registered, creates the container all the same. So the
hook's decisions are verified afterwards. The kinds of drift, and their severity:

    HookMissed        breach  a marker shows a nonce: its devices were granted, but no hook adjusted it
    ForgedMarker      breach  a marker that no hook and no CDI edit of this node set
    EnvChanged        breach  a variable that the hook pinned has another value
    ForeignDevice     breach  it can open a GPU or NIC that it does not hold
    ForeignMount      breach  a mount that the hook refuses
    DeviceMissing             it cannot open a device that it holds
    InterfaceMissing  lack    its network namespace lacks the interface of a NIC that it holds
    MountChanged      breach  the library or the limits of its isolation are not mounted as they were
    NotLimited                the limiter of its claim says that it does not enforce
    LimitMissing              locked memory is still limited, though its RDMA device needs it
    NotConfined       notice  privileged where the runtime cannot deny anything, and started all the same: it
                              holds devices, or its pod is critical to the node (hook/privileged)
    CardsCounted      notice  it counts its cards in CUDA_VISIBLE_DEVICES: the numbers are its own, not the
                              host's
    NotAdjusted               NVIDIA_VISIBLE_DEVICES is not `void`; it was created while no hook was
                              registered
    Unverified                it is not in the ledger, and the record of its claim cannot be read: its grants
                              are unknown

A breach is reported to the API and may lead to eviction. A lack is reported too and never leads to eviction:
the container has nothing that is not its own, and its successor may lack the same. A notice tells the pod's
author something, once a pod; it is no fault. The rest is counted and logged. Containers older than koordra's
installation are NotAdjusted, which therefore is no breach.

InterfaceMissing is a NIC that was removed from the pod (by hand, by a network plugin, with the card), that
the pod renamed, or that is in another pod of the same claim. Interfaces are looked up by the name that
Prepare planned; the host cannot see whether an RDMA link is in the namespace too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from koordra.api import names
from koordra.node_state.claim_network import AttachedNetwork, ClaimNetwork
from koordra.node_state.claim_ref import MARKER_PREFIX
from koordra.node_state.prepared_claim import DeviceGuard, PreparedClaim
from koordra.nri.hook.adjust import MEMLOCK
from koordra.nri.hook.environment import NOTHING_VISIBLE, OUTVOTED, VISIBLE_DEVICES, counted_cards
from koordra.nri.hook.grants import GRANTED, Grants, grants_of
from koordra.nri.hook.ledger import Granted, GrantedDevice, granted_of
from koordra.nri.hook.oci import Container, Refusal, can_open
from koordra.nri.hook.ungranted_access import PRIVATE, check_mounts, host_path
from koordra.nri.verify.bundles import Running

BREACHES = frozenset(
    {"HookMissed", "ForgedMarker", "EnvChanged", "ForeignDevice", "ForeignMount", "MountChanged"}
)
NAMED = 4
"""Device nodes that a difference names; of the others it says how many."""
LACKS = frozenset({"InterfaceMissing"})
CARDS_COUNTED = "CardsCounted"
"""a container numbers its cards in CUDA_VISIBLE_DEVICES: the numbers are its own, not the host's"""
NOT_CONFINED = "NotConfined"
"""a privileged container started where the runtime cannot deny it anything"""
NOTICES = frozenset({CARDS_COUNTED, NOT_CONFINED})
KINDS = (
    *sorted(BREACHES),
    *sorted(LACKS),
    *sorted(NOTICES),
    *("DeviceMissing", "LimitMissing", "NotAdjusted", "NotLimited", "Unverified"),
)


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference. `devices` are those that it is about: all of the container's but for one that concerns
    a single one."""

    kind: str
    message: str
    devices: tuple[GrantedDevice, ...] = ()

    @property
    def breach(self) -> bool:
        return self.kind in BREACHES

    @property
    def subject(self) -> str:
        """What is reported to the API in the same words: `breach`, or the kind; empty for what is not."""
        if self.breach:
            return "breach"
        return self.kind if self.kind in LACKS | NOTICES else ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference, and the container that has it. `predates_hook`: it is older than koordra's first hook on
    this node."""

    container: Container
    drift: Drift
    predates_hook: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Findings of one key are one: cards are counted alike in all containers of a pod."""
        if self.drift.kind == "CardsCounted" and self.container.pod_uid:
            return self.container.pod_uid, self.drift.kind
        return self.container.id, self.drift.message


@dataclass(frozen=True, slots=True)
class Interfaces:
    """The network interfaces of one container: those that it has, those planned for each claim's pod, and
    where they are attached; claims by uid. `problems`: records that could not be read."""

    there: frozenset[str]
    planned: Mapping[str, ClaimNetwork]
    attached: Mapping[str, AttachedNetwork]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What the container should have: its entry in the ledger, its claims by marker, and the uids of
    those whose limiter does not enforce. `interfaces` is None where no claim of the container has any, or
    they cannot be seen. `belongs`: why nothing is taken away from it, for `unconfined`."""

    granted: Granted | None = None
    claims: Mapping[str, PreparedClaim] | None = None
    unreadable: Mapping[str, str] | None = None
    guarded: DeviceGuard | None = None
    private: tuple[str, ...] = PRIVATE
    unlimited: frozenset[str] = frozenset()
    interfaces: Interfaces | None = None
    belongs: str = ""


def drift_of(running: Running, expected: Expected) -> tuple[Drift, ...]:
    if expected.granted is None and expected.unreadable:
        why = next(iter(expected.unreadable.values()))
        return (Drift("Unverified", f"{running.container}: its claim cannot be verified: {why}"),)
    granted = expected.granted
    if granted is not None:
        found = [*_differences(running, granted, expected.unlimited), *_notices(running, granted)]
    else:
        left = expected.guarded.left if expected.guarded is not None else ()
        grants, missed = _unknown_to_hook(
            running.container, expected.claims or {}, gpus_left=names.TYPE_GPU in left
        )
        granted, found = granted_of(running.container, grants, expected.guarded), list(missed)
    devices = granted.devices
    if expected.interfaces is not None:
        found += _interfaces(running, expected.interfaces, devices)
    if expected.guarded is not None:
        why = "" if granted.confined else "it is privileged, and this runtime denies nothing to it"
        foreign = _foreign(running, expected.guarded, granted.numbers, why=why)
        found += [foreign] if foreign else []
        try:
            check_mounts(
                running.container,
                gpu=any(device.type in names.GPU_TYPES for device in devices),
                claims=frozenset(device.claim_uid for device in devices),
                devices=frozenset(device.device for device in devices),
                guarded=expected.guarded,
                private=expected.private,
            )
        except Refusal as refusal:
            found.append(Drift("ForeignMount", str(refusal)))
    return tuple(
        Drift(each.kind, f"{running.container}: {each.message}", each.devices or devices) for each in found
    )


def _differences(running: Running, granted: Granted, unlimited: frozenset[str]) -> Iterator[Drift]:
    env = dict(running.container.env)
    if any(env.get(name, value) != value for name, value in granted.env if name.startswith(MARKER_PREFIX)):
        why = "the hook had decided on it, and ended before the runtime had its answer"
        yield Drift("HookMissed", f"{why}: nothing is pinned, and it knows its nonce; create it anew")
        env = dict(granted.env)
    for name, value in granted.env:
        if env.get(name) != value:
            yield Drift("EnvChanged", f"{name} is {env.get(name)!r}; the hook set {value!r}")
    for kind, major, minor in sorted(granted.numbers):
        if running.container.rules and not can_open(running.container.rules, (kind, major, minor)):
            yield Drift("DeviceMissing", f"{kind} {major}:{minor} is held and cannot be opened")
    if granted.memlock and MEMLOCK not in running.container.rlimits:
        yield Drift("LimitMissing", f"{MEMLOCK} is not lifted")
    there = {
        host_path(mount.destination): (host_path(mount.source), mount.read_only)
        for mount in running.container.mounts
    }
    for mount in granted.mounts:
        if there.get(host_path(mount.destination)) != (host_path(mount.source), mount.read_only):
            yield Drift(
                "MountChanged", f"{mount.source} is not mounted at {mount.destination} as it was given"
            )
    for uid in sorted({device.claim_uid for device in granted.devices} & unlimited):
        yield Drift("NotLimited", f"the limiter of claim {uid} does not enforce")


def _notices(running: Running, granted: Granted) -> Iterator[Drift]:
    cards = {device.device for device in granted.devices if device.type in names.GPU_TYPES}
    numbers = counted_cards(dict(running.container.env)) if cards else ()
    if numbers:
        there = "0" if len(cards) == 1 else f"0 to {len(cards) - 1}"
        yield Drift(
            "CardsCounted",
            f"CUDA_VISIBLE_DEVICES is {','.join(numbers)}, which counts the container's own cards ({there}) and not the "
            "node's; leave it out to use all that its claims hold",
        )


def _interfaces(running: Running, known: Interfaces, devices: tuple[GrantedDevice, ...]) -> Iterator[Drift]:
    for problem in known.problems:
        yield Drift("Unverified", f"its network interfaces cannot be verified: {problem}")
    for device in devices:
        plan = known.planned.get(device.claim_uid)
        interface = plan.interfaces.get(device.device) if plan else None
        where = known.attached.get(device.claim_uid)
        pod = running.container.pod_uid
        elsewhere = where is not None and bool(pod) and where.pod != pod
        # An interface of that name in a pod without the claim's network is another's: a network plugin's, or
        # the program's own.
        if interface is None or (interface in known.there and not elsewhere):
            continue
        if where is None:
            why = "the claim's network is in no pod; is the NRI hook there? create the pod anew"
        elif elsewhere:
            why = f"it is in the pod with uid {where.pod}, and goes into one pod at a time; give each pod a claim of its own"
        else:
            why = "it was there and was taken away or renamed; create the pod anew to get it back"
        yield Drift(
            "InterfaceMissing",
            f"{device.device} is held and its network interface {interface} is not in the pod: {why}",
            (device,),
        )


def _unknown_to_hook(
    container: Container, claims: Mapping[str, PreparedClaim], *, gpus_left: bool
) -> tuple[Grants, tuple[Drift, ...]]:
    """A container not in the ledger: it holds what its nonces prove, and no hook has set `granted`."""
    env = dict(container.env)
    markers = [name for name in env if name.startswith(MARKER_PREFIX)]
    if any(env[name] == GRANTED for name in markers):
        why = "a marker says `granted`, and no hook of this node gave the container anything"
        return Grants(), (Drift("ForgedMarker", why),)
    if markers:
        try:
            grants = grants_of(container, claims=claims, unreadable={})
        except Refusal as refusal:
            return Grants(), (Drift("ForgedMarker", str(refusal)),)
        why = "it was given devices while no hook was registered: nothing is pinned, and it knows its nonce"
        return grants, (Drift("HookMissed", f"{why}; create it anew"),)
    visible = env.get(VISIBLE_DEVICES)
    if visible in (NOTHING_VISIBLE, OUTVOTED) or gpus_left:
        return Grants(), ()
    why = f"{VISIBLE_DEVICES} is {visible!r}; it was created while no hook was registered"
    return Grants(), (Drift("NotAdjusted", why),)


def unconfined(running: Running, expected: Expected) -> Drift | None:
    """That a container from which nothing is taken away can open devices that it does not hold, if it can."""
    held = expected.granted.numbers if expected.granted else frozenset()
    found = _foreign(running, expected.guarded, held, why=expected.belongs) if expected.guarded else None
    return found and replace(found, message=f"{running.container}: {found.message}")


def _foreign(
    running: Running, guarded: DeviceGuard, held: frozenset[tuple[str, int, int]], *, why: str
) -> Drift | None:
    """That it can open devices that it does not hold: one difference for all, since a privileged container
    can open each of the node's. `why` it may, if it may."""
    opened = [
        f"{kind} {major}:{minor}"
        for kind, major, minor in sorted({node.number for node in guarded.nodes} - held)
        if can_open(running.container.rules, (kind, major, minor))
    ]
    if not opened:
        return None
    where = "the kernel lets it" if running.from_kernel else "its device rules let it"
    more = f" and {len(opened) - NAMED} more" if opened[NAMED:] else ""
    what = (
        f"{where} open device nodes of GPUs and NICs that it does not hold: {', '.join(opened[:NAMED])}{more}"
    )
    return Drift("NotConfined", f"{what}; {why}") if why else Drift("ForeignDevice", what)
