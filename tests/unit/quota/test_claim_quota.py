"""Claims under a quota: what is let in, and in which words not; several replicas."""

from __future__ import annotations

import random

import pytest

from koordra.api import names, objects
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.quota.record import KEPT, NAME
from koordra.errors import ApiUnreachable, Conflict
from tests.unit.legacy.cluster import Cluster, of_kind, pod
from tests.unit.quota.replicas import Object, Replica, Server, a_claim, a_quota, a_slice, asks

SLICE = a_slice("n0", *["80Gi"] * 8)


def record(server: Server) -> Object:
    return server.api.get(CONFIG_MAPS, NAME, namespace="koordra-system")


def test_what_goes_beyond_is_refused_in_kubernetes_words() -> None:
    replica = Replica(Server(a_quota(gpu_memory="100Gi")), SLICE)
    assert replica.admits(a_claim("a", asks(memory="60Gi")))
    answer = replica.review(a_claim("b", asks(memory="60Gi")))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert str(answer.problems[0]) == (
        'resourceclaims "b" is forbidden: exceeded quota: gpus, requested: requests.koordra.io/gpu-memory=60Gi, '
        "used: requests.koordra.io/gpu-memory=60Gi, limited: requests.koordra.io/gpu-memory=100Gi"
    )
    assert replica.admits(a_claim("c", asks(memory="40Gi")))


@pytest.mark.parametrize(
    ("hard", "over"),
    [("gpu", asks(count=2)), ("gpu_cores", asks(cores="2")), ("nic", asks("nic.koordra.io", count=2)),
     ("nic_share", asks("nic.koordra.io", share="2"))],
)  # fmt: skip
def test_each_name_bounds(hard: str, over: Object) -> None:
    replica = Replica(Server(a_quota(**{hard: "1"})), SLICE)
    assert "exceeded quota" in replica.refuses(a_claim("a", over))


def test_all_devices_of_a_node_are_not_said_to_be_few() -> None:
    every = {"exactly": {"deviceClassName": "gpu.koordra.io", "allocationMode": "All"}}
    replica = Replica(Server(a_quota(gpu="8")), SLICE)
    assert "must specify koordra.io/gpu" in replica.refuses(a_claim("a", every))


def test_names_of_dialects_do_not_count_claims_that_users_write() -> None:
    bound = a_quota()
    bound["spec"]["hard"] = {"requests.nvidia.com/gpu": "0"}
    assert Replica(Server(bound), SLICE).admits(a_claim("a", asks()))


def test_a_claim_counts_until_it_is_gone() -> None:
    server = Server(a_quota(gpu="1"))
    replica, claim = Replica(server, SLICE), a_claim("a", asks())
    assert replica.admits(claim)
    replica.shown(claim)
    server.now += 10 * KEPT
    replica.refuses(a_claim("b", asks()))
    replica.shown(claim, event="DELETED")
    assert replica.admits(a_claim("b", asks()))


def test_what_was_not_stored_counts_for_a_minute() -> None:
    server = Server(a_quota(gpu="1"))
    replica = Replica(server, SLICE)
    assert replica.admits(a_claim("a", asks()))
    replica.refuses(a_claim("b", asks()))
    server.now += KEPT + 1
    assert replica.admits(a_claim("b", asks()))
    assert "uid-a" not in str(record(server)["data"])


def test_a_dry_run_takes_nothing() -> None:
    server = Server(a_quota(gpu="1"))
    replica = Replica(server, SLICE)
    assert replica.admits(a_claim("a", asks()), dry_run=True)
    assert not record(server).get("data")
    assert replica.admits(a_claim("b", asks()))


def test_a_replica_that_is_new_reads_what_others_let_in() -> None:
    server = Server(a_quota(gpu="1"))
    assert Replica(server, SLICE).admits(a_claim("a", asks()))
    assert "used: requests.koordra.io/gpu=1" in Replica(server, SLICE).refuses(a_claim("b", asks()))


def test_a_claim_that_came_and_went_is_not_counted_by_the_record() -> None:
    server = Server(a_quota(gpu="1"))
    first, second, claim = Replica(server, SLICE), Replica(server, SLICE), a_claim("a", asks())
    assert first.admits(claim)
    second.shown(claim)
    second.shown(claim, event="DELETED")
    assert second.admits(a_claim("b", asks()))


def test_without_the_record_nothing_is_let_in() -> None:
    server = Server(a_quota(gpu="1"))
    replica = Replica(server, SLICE)
    server.api.delete(CONFIG_MAPS, NAME, namespace="koordra-system")
    answer = replica.review(a_claim("a", asks()))
    assert answer.code == 503
    assert "koordra-quota does not exist" in str(answer.problems[0])


def test_a_write_without_an_answer_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(a_quota(gpu="1"))
    replica = Replica(server, SLICE)

    def away(*_: object, **__: object) -> None:
        raise ApiUnreachable("nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr(server.api, "patch", away)
        assert replica.review(a_claim("a", asks())).code == 503
    assert replica.admits(a_claim("b", asks())), "the first one took nothing"


def test_who_loses_the_race_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica writes between the reading and the writing."""
    server = Server(a_quota(gpu="1"))
    first, second = Replica(server, SLICE), Replica(server, SLICE)
    write = server.api.patch

    def slow(*given: object, **more: object) -> object:
        monkeypatch.setattr(server.api, "patch", write)
        assert second.admits(a_claim("b", asks()))
        return write(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server.api, "patch", slow)
    assert "used: requests.koordra.io/gpu=1" in first.refuses(a_claim("a", asks()))


def test_nonsense_in_the_record_is_nobody() -> None:
    server = Server(a_quota(gpu="1"))
    for text in ("]", "[]", '{"u": 1}', '{"u": {"at": "x", "amounts": {}, "pod": {}}}'):
        server.api.patch(CONFIG_MAPS, NAME, {"data": {"team": text}}, namespace="koordra-system")
        replica, claim = Replica(server, SLICE), a_claim("a", asks())
        assert replica.admits(claim)


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_reviews_and_watches_goes_beyond(seed: int) -> None:
    """Three replicas, each of which sees claims come and go when it pleases, and is started anew at times:
    what is stored never goes beyond, claims among it that came unasked, and what has room for long is let
    in."""
    chance = random.Random(seed)
    server = Server(a_quota(gpu_memory="100Gi"))
    sizes: dict[str, int] = {}
    for number in range(chance.randrange(3)):  # came before the quota, or before the API server asked
        claim = a_claim(f"before{number}", asks(memory="30Gi"))
        server.claims[objects.uid(claim)], sizes[objects.uid(claim)] = claim, 30
    replicas = [Replica(server, SLICE) for _ in range(3)]
    unseen: list[list[tuple[str, Object]]] = [
        [("ADDED", one) for one in server.claims.values()] for _ in "abc"
    ]
    for step in range(60):
        what = chance.random()
        if what < 0.5:
            size = chance.choice((10, 30, 50))
            claim = a_claim(f"c{step}", asks(memory=f"{size}Gi"))
            if (
                chance.choice(replicas).admits(claim) and chance.random() < 0.9
            ):  # else another webhook refuses
                server.claims[objects.uid(claim)] = claim
                sizes[objects.uid(claim)] = size
                for queue in unseen:
                    queue.append(("ADDED", claim))
        elif what < 0.65 and server.claims:
            uid = chance.choice(sorted(server.claims))
            gone = server.claims.pop(uid)
            for queue in unseen:
                queue.append(("DELETED", gone))
        elif what < 0.7:
            at = chance.randrange(3)
            replicas[at], unseen[at] = Replica(server, SLICE), []
            replicas[at].shown(*server.claims.values())
        else:
            at = chance.randrange(3)
            for _ in range(min(len(unseen[at]), 3)):
                event, claim = unseen[at].pop(0)
                replicas[at].shown(claim, event=event)
        server.now += chance.choice((0.0, 0.1, 1.0))
        assert sum(sizes[uid] for uid in server.claims) <= 100
    for replica, queue in zip(replicas, unseen, strict=True):
        for event, claim in queue:
            replica.shown(claim, event=event)
    server.now += 3 * KEPT
    room = 100 - sum(sizes[uid] for uid in server.claims)
    assert room == 0 or replicas[0].admits(a_claim("last", asks(memory=f"{room}Gi")))


# claims of rewritten pods


def rewritten() -> tuple[Object, Object]:
    cluster = Cluster()
    cluster.quotas = [a_quota(gpu="1")]
    stored = cluster.store(cluster.admitted(pod({"nvidia.com/gpu": 1}), uid="u1"))
    return stored, of_kind(cluster)[0]


def of_pod(stored: Object, template: Object, name: str, **more: object) -> Object:
    entry = stored["spec"]["resourceClaims"][0]["name"]
    claim = a_claim(name, annotations={names.POD_CLAIM_NAME: entry})
    owner = {"kind": "Pod", "name": objects.name(stored), "uid": objects.uid(stored), "controller": True}
    claim["metadata"]["ownerReferences"] = [owner | more]
    return {**claim, "spec": template["spec"]["spec"]}


def test_a_claim_of_a_rewritten_pod_counts_with_the_pod_and_only_one_does() -> None:
    stored, template = rewritten()
    replica = Replica(Server(a_quota(gpu="1")), SLICE)
    replica.usage.on_template("ADDED", template)
    replica.usage.on_pod("ADDED", stored)
    genuine = of_pod(stored, template, "genuine")
    assert replica.admits(genuine)
    replica.shown(genuine)
    assert replica.usage.counted(a_quota(gpu="1"), "koordra.io/gpu") == 1
    replica.refuses(of_pod(stored, template, "a-second-one"))
    replica.refuses(of_pod(stored, template, "of-another-pod", uid="somebody"))
    replica.refuses({**genuine, "metadata": {**genuine["metadata"], "uid": "x", "annotations": {}}})
    bigger = a_claim("bigger", asks(count=4))
    bigger["metadata"] = {**of_pod(stored, template, "bigger")["metadata"], "uid": "big"}
    replica.refuses(bigger)
    replica.usage.on_pod("DELETED", stored)
    assert replica.usage.counted(a_quota(gpu="1"), "koordra.io/gpu") == 1, "the claim is still there"
    replica.shown(genuine, event="DELETED")
    assert replica.usage.counted(a_quota(gpu="1"), "koordra.io/gpu") == 0


def test_a_claim_that_the_watch_shows_before_its_pod_is_counted_once_in_the_end() -> None:
    stored, template = rewritten()
    replica = Replica(Server(a_quota(gpu="2")), SLICE)
    replica.shown(of_pod(stored, template, "genuine"))
    assert replica.usage.counted(a_quota(gpu="1"), "koordra.io/gpu") == 1
    replica.usage.on_pod("ADDED", stored)
    replica.usage.on_template("ADDED", template)
    assert replica.usage.counted(a_quota(gpu="1"), "koordra.io/gpu") == 1


def test_nothing_is_remembered_of_claims_that_are_gone() -> None:
    replica = Replica(Server(a_quota(gpu="1")), SLICE)
    stored, template = rewritten()
    claims = [a_claim("a", asks()), of_pod(stored, template, "b")]
    replica.usage.on_template("ADDED", template)
    replica.usage.on_pod("ADDED", stored)
    replica.shown(*claims)
    replica.usage.on_pod("DELETED", stored)
    replica.shown(*claims, event="DELETED")
    kept = vars(replica.claims)
    assert not any(kept[name] for name in ("_claims", "_of_class", "_of_pod", "_covered", "_by_size"))


def test_conflicts_without_end_are_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(a_quota(gpu="1"))

    def beaten(*_: object, **__: object) -> None:
        raise Conflict("modified", code=409)

    monkeypatch.setattr(server.api, "patch", beaten)
    answer = Replica(server, SLICE).review(a_claim("a", asks()))
    assert answer.code == 503
    assert "too many are admitted" in str(answer.problems[0])
