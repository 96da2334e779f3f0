"""docs/attacks.md, made from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.attacks.containers import CONTAINERS
from tests.attacks.murphy import MURPHY
from tests.attacks.node import NODE
from tests.attacks.policy import POLICY
from tests.attacks.row import Attack
from tests.attacks.tenant import TENANT


@dataclass(frozen=True, slots=True)
class Table:
    """`runner`: the file whose functions try the rows that name no tests of their own; `on_cluster`: the file
    that tries them on a lent cluster, too."""

    title: str
    rows: tuple[Attack, ...]
    runner: str
    said: str
    on_cluster: str = ""

    def on_any_cluster(self) -> list[Attack]:
        return [row for row in self.rows if self.on_cluster and row.runs and not row.needs_own_cluster]


RUNTIME: Final = "*real* containerd"
CLUSTER: Final = "*real* 1.36.2"
DOUBLE: Final = "*double*"
ON_CLUSTER: Final = "tests/cluster/test_attacks.py"
TABLES: Final = (
    Table(
        "A tenant's containers",
        CONTAINERS,
        "tests/e2e/test_attacks.py",
        "Against the isolation of cards and NICs, inside real containers. Nodes are made-up character devices without a driver: "
        "a refused open is EPERM, an allowed one ENXIO. The device cgroup is of version 1 there. On version 2 a BPF program "
        "decides, which runc makes from the same rules: mknod, the host's nodes in a volume, ephemeral containers, resizes and "
        "(containerd 2.2) privileged containers are run there too (tests/e2e/test_pod_life.py). The kernel does not tell what "
        "such a program allows, so verification reads the OCI spec. Not run anywhere yet, and therefore risks: the rdma "
        "controller, and real RDMA hardware. User namespaces: a container's root is then not the node's root, which takes mknod "
        "away from the start.",
    ),
    Table(
        "A tenant's objects",
        TENANT,
        "tests/attacks/test_tenant.py",
        "By somebody who may write pods, claims, templates, ConfigMaps, Secrets and Events of one namespace, on the development "
        "cluster with koordra installed as it ships. After each row the claim of another namespace gets its devices.",
        on_cluster=ON_CLUSTER,
    ),
    Table(
        "A tenant's word on isolation and network",
        POLICY,
        "tests/attacks/test_policy.py",
        "By the same somebody, to choose what keeps its share of a card, or whom its pods reach. What a claim may say is listed in "
        "[isolation.md](isolation.md#what-a-claim-may-say). The nodes allow `limiter` alone.",
        on_cluster=ON_CLUSTER,
    ),
    Table(
        "A node",
        NODE,
        "tests/attacks/test_node.py",
        "By somebody who has the credentials of koordra's programs on one node, or is root there, against the cluster and its "
        "other nodes.",
        on_cluster=ON_CLUSTER,
    ),
    Table(
        "Murphy",
        MURPHY,
        "tests/attacks/test_murphy.py",
        "Nobody means it, and it happens.",
        on_cluster=ON_CLUSTER,
    ),
)

OUTCOMES: Final = {
    "refused": "what was asked for is not made: the API server or the runtime says why.",
    "denied": "it is made, and does not get what it wanted.",
    "detected": "it works, or something stands still, until somebody acts: who looks after the cluster is told.",
    "bounded": "it works, at the expense of its own namespace, or by an amount that does not grow.",
    "repaired": "what broke is put right again by itself.",
    "open": "it works. The row says why, and what to set up against it.",
}


def render() -> str:
    return "\n".join([*_head(), *(line for table in TABLES for line in _table(table)), ""])


def _head() -> Iterable[str]:
    yield "# Attacks, and what comes of them"
    yield ""
    yield "Made from the rows in tests/attacks. Each is run by a test, which compares the outcome and looks for what is seen."
    yield (
        f"Under *Run*, {RUNTIME} is containerd, runc and the kernel of the test's machine, {CLUSTER} the API server, scheduler and "
        f"controllers of Kubernetes 1.36.2, and {DOUBLE} a double of whatever the row is about. Cards, NICs and drivers are doubles in all of them."
    )
    yield ""
    for outcome, meaning in OUTCOMES.items():
        yield f"- **{outcome}**: {meaning}"


def _table(table: Table) -> Iterator[str]:
    yield from ("", f"## {table.title}", "", table.said)
    yield f"Rows marked *yes* are run by `{table.runner}`{_on_cluster(table)}."
    yield from ("", "| Attack | Outcome | How it is seen | Run |", "|---|---|---|---|")
    for row in table.rows:
        yield f"| **{row.name}**: {row.how} | {_outcome(row)} | {_seen(row)} | {_run(row, table)} |"


def _on_cluster(table: Table) -> str:
    if not table.on_cluster:
        return ""
    left_out = [f"`{row.name}`" for row in table.rows if row.runs and row not in table.on_any_cluster()]
    but = (
        f", but for {', '.join(left_out)}, which need an API server, a controller or a log of their own"
        if left_out
        else ""
    )
    return f" and, on Kubernetes 1.36 or whatever KUBECONFIG leads to, by `{table.on_cluster}`{but}"


def _outcome(row: Attack) -> str:
    newer = "" if row.newer is None else f"; containerd 2.2 and later: **{row.newer}**"
    return f"**{row.outcome}**{newer}. {row.by[0].upper()}{row.by[1:]}"


def _seen(row: Attack) -> str:
    return "; ".join(map(str, row.seen)) or "not at all"


def _run(row: Attack, table: Table) -> str:
    if row.not_run:
        return f"not run: {row.not_run}"
    if row.tests:
        return "; ".join(f"{_stood_in(test)}: `{test}`" for test in row.tests)
    if table.runner.startswith("tests/e2e/"):
        return f"yes: {RUNTIME}"
    return f"yes: {DOUBLE}" + (f", {CLUSTER}" if row in table.on_any_cluster() else "")


def _stood_in(test: str) -> str:
    """What was real where the test ran."""
    if test.startswith("tests/e2e/"):
        return RUNTIME
    return CLUSTER if test.startswith("tests/cluster/") else DOUBLE
