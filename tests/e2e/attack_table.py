"""What somebody who may write pods, or who runs code in one, tries; and what comes of it.

    refused    the container is not created; its pod's events say what to change
    denied     it is created, and the kernel or the pinned variable keeps it from what it wanted
    detected   it works until the next look at running containers (a minute at most); then an Event, a metric,
               a condition of the claim and, by policy, eviction
    open       it works; the reason says why, and what to set up against it

Every row that `runs` has a test of its name in test_attacks.py, inside real containers; docs/attacks.md is
made from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["refused", "denied", "detected", "open"]


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `verdict` is what containerd up to 2.1 shows; `newer` where 2.2 and later differ."""

    name: str
    how: str
    verdict: Verdict
    by: str
    newer: Verdict | None = None
    runs: bool = True


ATTACKS: Final = (
    Attack(
        "visible-devices-all",
        "`NVIDIA_VISIBLE_DEVICES=all` in the pod or its image",
        "denied",
        "the hook sets it to `void` in every container; no device rule opens a card",
    ),
    Attack(
        "repeated-variable",
        "a variable that the hook replaces stands twice in the container's environment, the wanted value last",
        "refused",
        "rule RepeatedVariable: the runtimes replace the first value, and the last one wins",
    ),
    Attack(
        "mknod",
        "root with CAP_MKNOD makes the node of another card, or of nvidiactl, inside the container",
        "denied",
        "the device cgroup: no rule for a device that is not held",
    ),
    Attack("hostpath-card", "hostPath volume of /dev/nvidia0", "refused", "rule ForeignMount"),
    Attack("hostpath-dev", "hostPath volume of /dev", "refused", "rule ForeignMount"),
    Attack(
        "hostpath-root",
        "hostPath volume of the whole host, and opening the node below it",
        "denied",
        "the device cgroup; a mount alone opens nothing",
    ),
    Attack(
        "hostpath-symlink",
        "hostPath volume of a symbolic link that leads to /dev/nvidia0 or to koordra's state",
        "refused",
        "the runtime resolves the link before it asks; rules ForeignMount and NodeState",
    ),
    Attack(
        "hostpath-state",
        "hostPath volume of koordra's state, the CDI directory or the runtime's plugin socket",
        "refused",
        "rule NodeState",
    ),
    Attack(
        "hostpath-above-state",
        "hostPath volume of a folder above koordra's state (`/var/lib/kubelet`, `/run`, `/`), and reading the records there",
        "open",
        "storage plugins, node exporters and network plugins need such volumes. Who reads there learns the nonces of claims, "
        "and who writes there is root on the node; the device cgroup still holds (see `hostpath-root`). Pod Security "
        "`baseline` forbids hostPath: enforce it in every namespace of users",
    ),
    Attack(
        "hostpath-race",
        "a directory of a hostPath volume is exchanged for a link to /dev while containers are created",
        "denied",
        "the device cgroup; the race may win the mount, never the device",
    ),
    Attack(
        "host-device",
        "a device node of the host through the CRI (a device plugin, or a changed kubelet)",
        "refused",
        "rule UngrantedDevice",
    ),
    Attack(
        "toolkit-mount",
        "a volume below /var/run/nvidia-container-devices, which asks NVIDIA's toolkit for cards",
        "refused",
        "rule ForeignMount",
    ),
    Attack(
        "cdi-annotation",
        "annotation `cdi.k8s.io/...` that names another pod's claim",
        "refused",
        "rule ForeignCDIDevice",
    ),
    Attack(
        "privileged",
        "a privileged container opens every card",
        "refused",
        "rule CannotDeny: such runtimes drop the rules that deny; from containerd 2.2 and CRI-O 1.34 on they are applied, and "
        "the cards are denied (a privileged container can undo that on cgroup version 1: see `cgroup-write`)",
        newer="denied",
    ),
    Attack(
        "override-limits",
        "the pod sets CUDA_VISIBLE_DEVICES or KOORDRA_MEMORY_LIMIT_0 itself, to more than its share",
        "denied",
        "CDI and the hook set the claim's values; whatever else is set is overwritten",
    ),
    Attack(
        "forged-marker",
        "a claim's marker variable with a made-up value",
        "refused",
        "rule ForgedMarker or UnknownClaim: the nonce is 128 random bits that only the node knows",
    ),
    Attack(
        "granted-marker",
        "a claim's marker variable with the value that containers see, `granted`",
        "refused",
        "rule ForgedMarker",
    ),
    Attack(
        "replayed-marker",
        "another pod's nonce, read in a container that was created while no hook was registered",
        "refused",
        "rule ForgedMarker: the claim's device nodes did not come with it",
    ),
    Attack(
        "marker-of-other-namespace",
        "the genuine nonce of a claim of another namespace",
        "refused",
        "rule ForgedMarker",
    ),
    Attack(
        "state-symlink",
        "the claim's record is exchanged for a symbolic link to a file of the attacker",
        "refused",
        "rule UnreadableState: records are opened without following links, and only as root's own regular files",
    ),
    Attack(
        "killed-hook",
        "the hook is killed; a claim's container is created without it",
        "detected",
        "difference HookMissed. Where the runtime knows required plugins (containerd 2.2, CRI-O 1.34) and they are set up, "
        "the container is refused instead",
        newer="refused",
    ),
    Attack(
        "killed-hook-forged-marker",
        "the hook is killed; a container with a self-made `granted` marker is created",
        "detected",
        "difference ForgedMarker: the hook has no entry of it",
        newer="refused",
    ),
    Attack(
        "cgroup-write",
        "a container with CAP_SYS_ADMIN mounts its device cgroup (version 1) and writes devices.allow",
        "detected",
        "difference ForeignDevice, from the kernel's own list. Version 2 has no such file. Pod Security `baseline` forbids "
        "the capability",
    ),
    Attack(
        "cgroup-allow-all",
        "a container with CAP_SYS_ADMIN mounts its device cgroup (version 1) and writes `a` to devices.allow, which opens "
        "every device at once",
        "detected",
        "difference ForeignDevice: the kernel's list then says `a *:* rwm`. Pod Security `baseline` forbids the capability",
    ),
    Attack(
        "leave-cgroup",
        "a container with CAP_SYS_ADMIN mounts the device cgroups (version 1) and moves a process of its own into the "
        "topmost one, then opens a card",
        "open",
        "the kernel looks at the process's cgroup, and verification at the container's, which is unchanged. Such a container "
        "is root on the node in all but name. Pod Security `baseline` forbids the capability: enforce it in every namespace "
        "of users",
    ),
    Attack(
        "past-the-kubelet",
        "a container started through the runtime's own socket, without kubelet and CRI",
        "detected",
        "difference ForeignDevice, or NotAdjusted while it opens no card: NRI is not told of it, its bundle is found. Who has "
        "the socket is root on the node: Pod Security `baseline` forbids hostPath",
    ),
    Attack(
        "passed-descriptor",
        "a holder passes its open descriptor of a card to another container through a shared socket",
        "open",
        "the kernel checks when a device is opened. The holder gives away its own share; the limiter counts the process by "
        "its container. Do not share volumes between tenants",
        runs=False,
    ),
    Attack(
        "unlimited-share",
        "a claim asks for a share of a card with `isolation: none`, or for a policy of its own (`allowedIsolation`)",
        "refused",
        "the operator's policy of node and class stands above the claim: the webhook refuses what the class does not allow, the "
        "allocator leaves nodes out that do not (BackendUnavailable), and Prepare refuses it on the node "
        "(tests/unit/webhook/test_claims.py, tests/unit/allocator/test_isolation.py, tests/unit/kubelet_plugin/test_isolation.py)",
        runs=False,
    ),
    Attack(
        "unlimited-neighbour",
        "a share without limits on a card where another tenant's share is limited",
        "refused",
        "a node's policy lists `none` alone or not at all, and Prepare refuses a share beside one of the other kind, from before a "
        "change of policy, say",
        runs=False,
    ),
    Attack(
        "host-root",
        "root on the node: writes CDI files, records, cgroups, or stops the hook for good",
        "open",
        "nothing on a node protects from its root. `koordra_nri_registered` and the DaemonSet's readiness show a missing hook",
        runs=False,
    ),
    Attack(
        "hook-starved",
        "so many containers are created that the runtime's time for the hook (2 s) runs out",
        "detected",
        "after 1.5 s the hook answers with an error, which fails the creation; when even that comes late the container is "
        "created and found (NotAdjusted). p99 is far below: benchmarks/nri_latency.py",
        runs=False,
    ),
)


def render() -> str:
    """docs/attacks.md."""
    lines = [
        "# Attacks on isolation, and what comes of them",
        "",
        (
            "Made from tests/e2e/attack_table.py; the rows marked *run* are tried inside real containers by `make e2e` "
            "(tests/e2e/test_attacks.py). Nodes are made-up character devices without a driver: a refused open is EPERM, an "
            "allowed one ENXIO. The device cgroup is of version 1 there."
        ),
        "",
        "- **refused**: the container is not created; its pod's events say what to change.",
        "- **denied**: it is created, and does not get what it wanted.",
        (
            "- **detected**: it works until the next look at running containers, a minute at most; then there is an Event, a "
            "metric, a condition of the claim and, with `--on-drift evict`, an eviction."
        ),
        "- **open**: it works. The reason says why, and what to set up against it.",
        "",
        "| Attack | How | Outcome | By | |",
        "|---|---|---|---|---|",
    ]
    for attack in ATTACKS:
        outcome = f"**{attack.verdict}**"
        if attack.newer is not None:
            outcome += f"; containerd 2.2 and later: **{attack.newer}**"
        lines.append(
            f"| {attack.name} | {attack.how} | {outcome} | {attack.by} | {'run' if attack.runs else 'not run'} |"
        )
    lines += [
        "",
        (
            "Not run anywhere yet, and therefore risks: device programs of cgroup version 2 (runc makes them from the same "
            "rules; `devices.list` does not exist there, so verification reads the OCI spec), the rdma controller, and real "
            "RDMA hardware. User namespaces: a container's root is then not the node's root, which takes mknod away from the "
            "start."
        ),
        "",
    ]
    return "\n".join(lines)
