"""koordra as a platform team runs it: installed by its chart, its programs as pods of its image under their
own accounts, on a real kubelet and container runtime; used, upgraded and gone back from with every mixture of
two releases, and taken away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.run import LEASE_NAME
from koordra.errors import ApiUnreachable, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.topology.machine import Machine
from koordra.topology.presets import write_machine
from tests.cluster import chart_release
from tests.cluster.chart_release import PLACE, PROGRAMS, Release, pods_of, replace_workload, rolled_out
from tests.cluster.kubelet_node import KubeletNode, lent_node, running
from tests.cluster.test_joint_allocation import Workload, joint, ordinary_memlock, request
from tests.cluster.waiting import eventually
from tests.e2e.node import unused_majors
from tests.fakes import driver_homes
from tests.fakes.chart import helm

pytestmark = pytest.mark.cluster

TEAM = "koordra-test-installed"
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
NAMESPACES = kinds.NAMESPACES
LABEL = "koordra.io/devices"
GONE_WITHIN = 300.0
"""The kubelet deletes the slices of a driver half a minute after it went, and retries in its own time."""
TRY = """
for at in $CARDS; do
  card=${at%:*} number=${at#*:}
  mknod /tmp/$card c ${number%,*} ${number#*,}
  echo $card $(dd if=/tmp/$card count=1 2>&1)
done
echo end; sleep 1000000
"""
"""Opens every card of the node, through nodes that the container makes itself: `NAME:MAJOR,MINOR`."""
MIXTURES = [
    ("kubeletPlugin",),
    ("kubeletPlugin", "nri"),
    ("nri",),
    ("nri", "controller"),
    ("controller",),
    ("controller", "kubeletPlugin"),
]
"""Which programs are the newer release's; between two of them one changes. All and none come before and
after."""


@pytest.fixture(scope="module")
def node(client: KubeClient) -> Iterator[KubeletNode]:
    found = lent_node(client)
    client.patch(kinds.NODES, found.name, {"metadata": {"labels": {LABEL: "true"}}})
    with suppress(Conflict):
        client.create(NAMESPACES, {"metadata": {"name": TEAM}})
    yield found
    client.patch(kinds.NODES, found.name, {"metadata": {"labels": {LABEL: None}}})


@pytest.fixture(scope="module")
def machine(node: KubeletNode) -> Iterator[tuple[Path, Machine]]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        root = Path(folder) / "machine"
        made = write_machine("hgx-h100", root, serial=node.name, device_major=unused_majors(5))
        driver_homes.libraries(root / driver_homes.MULTI_ARCH, str(made.driver_version))
        yield root, made


@pytest.fixture(scope="module")
def releases(node: KubeletNode, machine: tuple[Path, Machine]) -> list[Release]:
    found = chart_release.lent_releases(node, machine[0])
    if any(slices_of(node)):
        pytest.skip("koordra runs on the lent node already")
    return found


def slices_of(node: KubeletNode) -> list[Object]:
    return node.client.list(kinds.RESOURCE_SLICES, field_selector=f"spec.driver={names.DRIVER}")[0]


class Team:
    """Who uses it: pods with a share and the NIC beside it."""

    def __init__(self, node: KubeletNode, machine: Machine) -> None:
        self.node, self.machine, self.client = node, machine, node.client
        self.workload = Workload(node.client, TEAM)

    def starts(self, name: str) -> None:
        """A pod whose container has tried to open every card of the node, and could open its own alone."""
        wanted = [request("gpu", names.CLASS_GPU, memory="10Gi"), request("nic", names.CLASS_NIC, share="10")]
        config = [joint("gpu", "nic"), ordinary_memlock("nic")]

        def made() -> bool:
            """Tried again, as controllers do, while the Service still leads to a replica that has ended."""
            with suppress(ApiUnreachable):
                self.workload.claim(name, wanted, config)
                return True
            return False

        eventually(made, f"claim {name}")
        cards = {each.name: each.node for each in self.machine.gpus if each.node}
        listed = " ".join(f"{card}:{node.major},{node.minor}" for card, node in cards.items())
        container = {
            "name": "main",
            "image": self.node.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", TRY],
            "env": [{"name": "CARDS", "value": listed}],
            "resources": {"claims": [{"name": "devices"}]},
        }
        spec = {
            "restartPolicy": "Never",
            # Not 0, upon which the API server forgets a pod that the kubelet has not ended yet.
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
            "containers": [container],
        }
        self.client.create(kinds.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=TEAM)
        running(self.client, TEAM, name)

        def said() -> list[str]:
            lines = self.node.log(TEAM, name)
            return lines if "end" in lines else []

        said_of = dict(line.split(" ", 1) for line in eventually(said, f"what {name} has opened")[:-1])
        gpu, nic = (
            result["device"]
            for result in self.workload.allocated(name)["status"]["allocation"]["devices"]["results"]
        )
        assert {card for card, text in said_of.items() if "No such device or address" in text} == {gpu}
        assert {card for card, text in said_of.items() if "Operation not permitted" in text} == {*cards} - {
            gpu
        }
        near = {each.location.switch for each in self.machine.gpus if each.name == gpu}
        assert near == {each.location.switch for each in self.machine.nics if each.name == nic}

    def started(self, name: str) -> str:
        """The pod's container and when it was started: the same as long as nobody touched it."""
        (status,) = objects.status_of(self.client.get(kinds.PODS, name, namespace=TEAM))["containerStatuses"]
        return f"{status['containerID']} {status['state']['running']['startedAt']}"

    def asks_to_end(self, name: str) -> None:
        self.client.delete(kinds.PODS, name, namespace=TEAM)

    def is_gone(self, name: str) -> None:
        eventually(
            lambda: name not in map(objects.name, self.client.list(kinds.PODS, namespace=TEAM)[0]),
            f"the end of {name}",
            timeout=GONE_WITHIN,
        )
        with suppress(NotFound):
            self.client.delete(kinds.RESOURCE_CLAIMS, name, namespace=TEAM)
        eventually(
            lambda: name not in map(objects.name, self.client.list(kinds.RESOURCE_CLAIMS, namespace=TEAM)[0]),
            f"the end of claim {name}",
        )

    def ends(self, *pods: str) -> None:
        for name in pods:
            self.asks_to_end(name)
        for name in pods:
            self.is_gone(name)


@pytest.fixture
def team(node: KubeletNode, machine: tuple[Path, Machine]) -> Team:
    return Team(node, machine[1])


@contextmanager
def installed(
    kubeconfig: str, node: KubeletNode, release: Release, *, in_use: bool = False
) -> Iterator[object]:
    """Helm, with the release installed; taken away at the end, `in_use` or when all claims have ended."""
    before = claim_files(node)
    with helm().Config(kubeconfig_path=kubeconfig, namespace=PLACE) as charts:
        charts.install(str(release.chart), "koordra", release.values, create_namespace=True)
        try:
            rolled_out(node.client)
            eventually(lambda: slices_of(node), "what the node offers")
            yield charts
            assert in_use or claim_files(node) <= before
        finally:
            charts.uninstall("koordra")
            is_taken_away(node)


def claim_files(node: KubeletNode) -> set[Path]:
    return set(node.cdi.glob("koordra.io-claim*"))


def is_taken_away(node: KubeletNode) -> None:
    """Nothing of it runs or is offered, its namespace ends, and the node's sockets and mounts are gone."""
    client = node.client
    eventually(lambda: not pods_of(client), "the end of koordra's pods", timeout=GONE_WITHIN)
    eventually(lambda: not slices_of(node), "the end of the slices", timeout=GONE_WITHIN)
    client.delete(NAMESPACES, PLACE)
    eventually(lambda: PLACE not in map(objects.name, client.list(NAMESPACES)[0]), "the end of its namespace")
    sockets = [*node.kubelet_root.glob(f"plugins_registry/{names.DRIVER}*"), *node.state.glob("*.sock")]
    assert not sockets
    mounts = Path("/proc/self/mountinfo").read_text()
    assert f"{node.state}/" not in mounts


def said_by_all(node: KubeletNode) -> str:
    return "\n".join(line for pod in pods_of(node.client) for line in node.log(PLACE, objects.name(pod)))


def nothing_was_refused(node: KubeletNode) -> None:
    text = said_by_all(node)
    assert '"level":"error"' not in text.replace(" ", "").lower(), text[-3000:]
    assert "orbidden" not in text
    assert "denied request" not in text


def test_it_is_installed_used_and_taken_away(
    kubeconfig: str, node: KubeletNode, releases: list[Release], team: Team
) -> None:
    with installed(kubeconfig, node, releases[0]):
        team.starts("first")
        team.starts("second")
        team.ends("first", "second")
        nothing_was_refused(node)


def test_a_pod_that_was_forgotten_ends_once_it_is_back(
    kubeconfig: str, node: KubeletNode, releases: list[Release], team: Team
) -> None:
    with installed(kubeconfig, node, releases[0], in_use=True):
        team.starts("forgotten")
        before = team.started("forgotten")
    assert team.started("forgotten") == before
    team.asks_to_end("forgotten")
    with installed(kubeconfig, node, releases[0]):
        team.is_gone("forgotten")


def test_two_releases_are_one_koordra_in_every_mixture(
    kubeconfig: str, node: KubeletNode, releases: list[Release], team: Team
) -> None:
    """Pods of each stage run on through all that follow, and end under another release than the one that they
    began under."""
    if len(releases) == 1:
        pytest.skip("no other release is lent (KOORDRA_OTHER=NAME:TAG=CHECKOUT)")
    newer, older = releases
    with installed(kubeconfig, node, older) as charts:
        team.starts("older")
        before = team.started("older")
        charts.upgrade(str(newer.chart), "koordra", newer.values)  # type: ignore[attr-defined]
        rolled_out(node.client)
        team.starts("newer")
        for last, mixture in pairwise([tuple(PROGRAMS), *MIXTURES, ()]):
            for program in PROGRAMS:
                if (program in last) != (program in mixture):
                    replace_workload(node.client, newer if program in mixture else older, program)
            rolled_out(node.client)
            name = "-".join(("of", *mixture)).lower()
            team.starts(name)
            team.ends(name)
            assert team.started("older") == before
            nothing_was_refused(node)
        with beside(node.client, newer):
            for number in range(4):
                team.starts(f"both-{number}")
            ended = leader(node.client)
            node.client.delete(kinds.PODS, ended, namespace=PLACE)
            eventually(lambda: leader(node.client) not in ("", ended), "another leader")
            team.starts("after")
        team.ends(*(f"both-{number}" for number in range(4)), "after")
        charts.upgrade(str(newer.chart), "koordra", newer.values)  # type: ignore[attr-defined]
        rolled_out(node.client)
        charts.rollback("koordra", version=1)  # type: ignore[attr-defined]
        rolled_out(node.client)
        team.starts("back")
        assert team.started("older") == before
        team.ends("older", "newer", "back")


@contextmanager
def beside(client: KubeClient, release: Release) -> Iterator[None]:
    """A controller of this release, too: both answer the webhook, and one of them leads."""
    kind, name = PROGRAMS["controller"]
    made = release.workload("controller")
    own = {"koordra.io/test": "beside"}
    labels = {**made["spec"]["template"]["metadata"]["labels"], **own}
    made["metadata"]["name"] = f"{name}-beside"
    made["spec"]["selector"]["matchLabels"] = labels
    made["spec"]["template"]["metadata"]["labels"] = labels
    client.create(kind, made, namespace=PLACE)
    try:
        eventually(
            lambda: objects.status_of(client.get(kind, f"{name}-beside", namespace=PLACE)).get(
                "availableReplicas"
            ),
            "the other controller",
            timeout=chart_release.ROLLED_OUT_WITHIN,
        )
        yield
    finally:
        client.delete(kind, f"{name}-beside", namespace=PLACE)
        eventually(
            lambda: not [pod for pod in pods_of(client) if "-beside-" in objects.name(pod)],
            "the end of the other controller",
        )


def leader(client: KubeClient) -> str:
    """The leading controller's pod."""
    holder = str(client.get(LEASES, LEASE_NAME, namespace=PLACE)["spec"].get("holderIdentity") or "")
    pods = map(objects.name, pods_of(client))
    return next((name for name in pods if holder.startswith(name)), "")
