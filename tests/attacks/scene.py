"""A row as it is run on a cluster: the attacker acts, the runner compares the outcome, looks
for all that the row says is seen, and has an innocent claim placed afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from structlog.testing import capture_logs

from koordra import logs
from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiError, ApiUnreachable, NotFound
from tests.attacks.cluster import INNOCENT, TENANT, InstalledCluster
from tests.attacks.row import Attack, Outcome, Seen
from tests.cluster.waiting import eventually
from tests.fakes.joint_cluster import claim, pod

LEFT_BEHIND: Final = (
    kinds.PODS,
    kinds.RESOURCE_CLAIM_TEMPLATES,
    kinds.RESOURCE_CLAIMS,
    CONFIG_MAPS,
)


class Scene:
    """One attack on an installed cluster; `told` keeps what the attacker was answered."""

    def __init__(self, cluster: InstalledCluster, logged: list[Any]) -> None:
        self.cluster = cluster
        self.tenant, self.admin = cluster.tenant, cluster.admin
        self.told: list[str] = []
        self.logged = logged
        self._counted = cluster.samples()
        self._events = self._event_keys()

    def attempt(self, act: Callable[[], object], *, unanswered: bool = False) -> Outcome:
        """`refused` when the API server says no, whose words are kept; `open` when it does not. With
        `unanswered` a 500 is a no, too: a webhook that does not answer."""
        try:
            act()
        except ApiError as error:
            if isinstance(error, ApiUnreachable) and not unanswered:
                raise
            self.told.append(str(error))
            return "refused"
        return "open"

    def create(self, kind: Kind, body: Object) -> Object:
        """As the tenant, in its namespace."""
        return self.tenant.create(kind, body, namespace=TENANT)

    def claim(self, name: str, *, config: tuple[Object, ...] = (), **asked: Any) -> Object:
        return self.create(kinds.RESOURCE_CLAIMS, asking(name, config=config, **asked))

    def pod(self, name: str, *claims: str, **spec: Any) -> Object:
        body = pod(name, claims, **spec)
        body["metadata"]["namespace"] = TENANT
        return self.create(kinds.PODS, body)

    def allocated(self, name: str, *, namespace: str = TENANT) -> bool:
        found = self.admin.get(kinds.RESOURCE_CLAIMS, name, namespace=namespace)
        return bool((found.get("status") or {}).get("allocation"))

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        return eventually(look, what)

    def wait_for(self, seen: Seen) -> None:
        eventually(lambda: self.sees(seen), str(seen))

    def results(self, name: str) -> list[Object]:
        """What is allocated to the tenant's claim."""
        found = self.admin.get(kinds.RESOURCE_CLAIMS, name, namespace=TENANT)
        return list(found["status"]["allocation"]["devices"]["results"])

    def sees(self, seen: Seen) -> bool:
        """Whether it stands there and did not before the attack."""
        match seen.where:
            case "answer":
                return any(seen.word in text for text in self.told)
            case "Event":
                return any(reason == seen.word for _, _, reason in self._event_keys() - self._events)
            case "metric":
                return self.cluster.samples().get(seen.word, 0.0) > self._counted.get(seen.word, 0.0)
            case "log":
                return any(line["event"] == seen.word for line in self.logged)
            case "condition":
                return seen.word in set(self._conditions())
            case "taint":
                slices = self.admin.list(kinds.RESOURCE_SLICES)[0]
                devices = [device for each in slices for device in each["spec"].get("devices") or ()]
                return any(
                    seen.word == found["key"] for each in devices for found in each.get("taints") or ()
                )

    def innocent_is_placed(self) -> None:
        """A claim of another namespace, made now, gets its devices and its pod a node."""
        name = f"innocent-{uuid.uuid4().hex[:6]}"
        body, user = asking(name), pod(name, (name,))
        for each in (body, user):
            each["metadata"]["namespace"] = INNOCENT
        client = self.cluster.innocent
        client.create(kinds.RESOURCE_CLAIMS, body, namespace=INNOCENT)
        client.create(kinds.PODS, user, namespace=INNOCENT)
        try:
            eventually(
                lambda: objects.spec_of(self.admin.get(kinds.PODS, name, namespace=INNOCENT)).get("nodeName"),
                f"the innocent pod {name} bound",
            )
        finally:
            client.delete(kinds.PODS, name, namespace=INNOCENT, grace_period=0)
            client.delete(kinds.RESOURCE_CLAIMS, name, namespace=INNOCENT)

    def end(self) -> None:
        """What the attacker made is gone, and its devices are free."""
        for kind in LEFT_BEHIND:
            for found in self.admin.list(kind, namespace=TENANT)[0]:
                with suppress(NotFound):
                    self._delete(kind, found)
        eventually(lambda: not self.admin.list(kinds.RESOURCE_CLAIMS, namespace=TENANT)[0], "the claims' end")

    def _delete(self, kind: Kind, found: Object) -> None:
        name = objects.name(found)
        foreign = [each for each in objects.metadata(found).get("finalizers") or () if "k8s.io" not in each]
        if foreign and kind is kinds.RESOURCE_CLAIMS:
            self.admin.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=TENANT)
        grace = 0 if kind is kinds.PODS else None
        self.admin.delete(kind, name, namespace=TENANT, grace_period=grace)

    def _event_keys(self) -> set[tuple[str, int, str]]:
        """Name, how often, reason: of what the attacker's namespace is told, and the cluster's objects."""
        found = self.admin.list(kinds.EVENTS)[0]
        return {(objects.name(each), int(each.get("count") or 1), str(each["reason"])) for each in found}

    def _conditions(self) -> Iterator[str]:
        for kind in (kinds.PODS, kinds.RESOURCE_CLAIMS):
            for found in self.admin.list(kind, namespace=TENANT)[0]:
                status = found.get("status") or {}
                places = [status, *(status.get("devices") or ())]
                for place in places:
                    for each in place.get("conditions") or ():
                        yield f"{each['type']}: {each['status']}"
        for found in self.admin.list(kinds.NODES)[0]:
            for each in (found.get("status") or {}).get("conditions") or ():
                yield f"{each['type']}: {each['status']}"


def asking(name: str, *, config: tuple[Object, ...] = (), **asked: Any) -> Object:
    """A claim of the tenant's for one GPU; `config`: its opaque parameters, `exactly`: more of its
    request."""
    exactly = asked.pop("exactly", {})
    body = claim(name, **asked)
    body["metadata"]["namespace"] = TENANT
    devices = body["spec"]["devices"]
    devices["requests"][0]["exactly"].update(exactly)
    if config:
        devices["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": each}} for each in config]
    return body


def all_refused(scene: Scene, *attempts: Callable[[], object]) -> Outcome:
    """`refused` when each of them is."""
    return "refused" if {scene.attempt(each) for each in attempts} == {"refused"} else "open"


Try = Callable[[Scene], Outcome]
TRIES: dict[str, Try] = {}


def attack(name: str) -> Callable[[Try], Try]:
    """The test of the row of this name."""

    def register(function: Try) -> Try:
        assert name not in TRIES, f"two tests of the row {name}"
        TRIES[name] = function
        return function

    return register


@contextmanager
def watched(cluster: InstalledCluster) -> Iterator[Scene]:
    logs.configure(level="info")
    try:
        with capture_logs() as logged:
            scene = Scene(cluster, logged)
            try:
                yield scene
            finally:
                scene.end()
    finally:
        logs.configure(level="warning")


def judge(cluster: InstalledCluster, row: Attack) -> None:
    """Run the row."""
    with watched(cluster) as scene:
        assert TRIES[row.name](scene) == row.outcome
        for seen in row.seen:
            eventually(lambda seen=seen: scene.sees(seen), f"{row.name}: {seen}; told {scene.told}")
        scene.innocent_is_placed()
