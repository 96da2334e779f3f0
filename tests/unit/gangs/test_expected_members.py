"""Members that do not exist yet: what they are to ask, read of their job; who goes before they are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
)
from koordra.api.objects import Object
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import COMMITTED, GANG, GANG_MIN
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.member_index import member_index_of
from koordra.controller.gangs.expected import awaiting, job_object
from koordra.controller.gangs.expected.job_object import job_ref
from koordra.controller.gangs.expected.job_pods import MOST_BEYOND, MOST_PODS, pods_of
from tests.fakes.joint_cluster import JointCluster, claim, pod
from tests.unit.gangs.job_objects import JOBS, job, replicated, template
from tests.unit.gangs.workload_pods import KINDS, LWS, POD_INDEX, job_set_job, lws, mpi
from tests.unit.gangs.workload_pods import pod as workload_pod


@pytest.mark.parametrize("kind", JOBS)
def test_the_pods_of_a_job_are_those_that_its_operator_makes(kind: str) -> None:
    """Of every pod that is there, the job's object says that it is to be: at the same position, in the same
    gang."""
    made = KINDS[kind]
    expected = {member_index_of(one.pod): one.pod for one in pods_of(JOBS[kind], made, least=2)}
    assert len(expected) >= len(made)
    for one in made:
        found = expected[member_index_of(one)]
        named = {GANG: "train", GANG_MIN: "2"}
        ours, theirs = (
            {
                **body,
                "metadata": {**body["metadata"], "annotations": {**body["metadata"]["annotations"], **named}},
            }
            for body in (found, one)
        )
        assert gang_of(ours) == gang_of(theirs)


def test_of_a_job_without_end_a_part_is_looked_at() -> None:
    endless = job("StatefulSet", "db", {"replicas": 10**8, "template": template()})
    assert len(list(pods_of(endless, KINDS["StatefulSet"], least=5))) == 5 + MOST_BEYOND
    assert len(list(pods_of(endless, KINDS["StatefulSet"], least=10**6))) == MOST_PODS


def numbers(made: Object, label: str, like: str = "JobSet, Indexed") -> list[str]:
    found = pods_of(made, KINDS[like], least=5)
    return [objects.labels_of(one.pod)[label] for one in found]


def test_pods_are_counted_as_their_operators_count_them() -> None:
    few = replicated("w", 1, 4)
    few["template"]["spec"]["completions"] = 2
    completion = "batch.kubernetes.io/job-completion-index"
    assert numbers(job("JobSet", "t", {"replicatedJobs": [few]}), completion) == ["0", "1"]
    later = {"replicas": 2, "ordinals": {"start": 3}, "template": template()}
    assert numbers(job("StatefulSet", "db", later), POD_INDEX) == ["3", "4"]
    task = {"name": "w", "replicas": 4, "template": template(), "partitionPolicy": {"partitionSize": 2}}
    assert numbers(job("Job", "t", {"tasks": [task]}), "volcano.sh/partition-id") == ["0", "0", "1", "1"]
    assert numbers(JOBS["PodCliqueSet"], "grove.io/podclique", "PodCliqueSet") == [
        "serve-0-prefill",
        "serve-0-decode",
        "serve-0-decode",
        "serve-0-sg-0-router",
        "serve-0-sg-1-router",
    ]


def test_jobs_that_depend_on_each_other_come_last() -> None:
    def after(name: str, *others: str) -> dict[str, Any]:
        return replicated(name, 1, 1, dependsOn=[{"name": one} for one in others])

    roles = [
        after("c", "b"),
        after("b", "a", "a", "nobody"),
        after("a"),
        after("x", "y", "a"),
        after("y", "x"),
    ]
    found = pods_of(job("JobSet", "train", {"replicatedJobs": roles}), KINDS["JobSet, Indexed"], least=5)
    stages = {
        objects.labels_of(one.pod)["jobset.sigs.k8s.io/replicatedjob-name"]: one.stage[0] for one in found
    }
    assert stages == {"a": 0, "b": 1, "c": 2, "x": 5, "y": 5}


def test_where_a_job_is_read() -> None:
    found = {kind: job_ref(pods) for kind, pods in KINDS.items()}
    assert {kind: f"{ref.kind} {ref.namespace}/{ref.name}" for kind, ref in found.items() if ref} == {
        "JobSet, Indexed": "jobsets.jobset.x-k8s.io team/train",
        "JobSet, not Indexed": "jobsets.jobset.x-k8s.io team/train",
        "JobSet without global indexes": "jobsets.jobset.x-k8s.io team/train",
        "TrainJob with a launcher": "jobsets.jobset.x-k8s.io team/train",
        "LeaderWorkerSet": "leaderworkersets.leaderworkerset.x-k8s.io team/serve",
        "RayCluster": "rayclusters.ray.io team/sim",
        "RayCluster of several hosts": "rayclusters.ray.io team/sim",
        "Volcano Job": "jobs.batch.volcano.sh team/train",
        "PodCliqueSet": "podcliquesets.grove.io team/serve",
    }
    for kind, owner in (
        ("StatefulSet", "apps/v1"),
        ("PyTorchJob", "kubeflow.org/v1"),
        ("MPIJob", "kubeflow.org/v2beta1"),
    ):
        one = {**KINDS[kind][0], "metadata": {**KINDS[kind][0]["metadata"]}}
        one["metadata"]["ownerReferences"] = [
            {"apiVersion": owner, "kind": kind, "name": "x", "controller": True}
        ]
        ref = job_ref([one])
        assert ref is not None
        assert (ref.kind.kind, ref.name) == (kind, "x")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicatedJobs": 3, "tasks": "x", "workerGroupSpecs": [1], "leaderWorkerTemplate": []},
        {
            "replicas": True,
            "replicatedJobs": [{"replicas": -1, "dependsOn": "x"}],
            "tasks": [{"dependsOn": 1}],
            "template": {"cliques": [1], "podCliqueScalingGroups": [{"cliqueNames": 1}]},
        },
    ],
)
@pytest.mark.parametrize("kind", sorted({str(one["kind"]) for one in JOBS.values()}))
def test_a_job_that_cannot_be_meant_has_few_pods(kind: str, spec: dict[str, Any]) -> None:
    assert len(list(pods_of(job(kind, "odd", spec), KINDS["LeaderWorkerSet"], least=2))) <= 3


class Jobs:
    """A cluster in which jobs and claim templates can be read, and whose operators' work is done by hand."""

    def __init__(self, *, gpus: int, nodes: int = 1, asked: dict[str, int] | None = None) -> None:
        self.cluster = JointCluster(nodes=nodes, gpus=gpus)
        for name, count in (asked or {"one": 1}).items():
            spec = claim(name, count=count)["spec"]
            self.cluster.api.create(
                RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}
            )

    def job(self, kind: Any, body: Object) -> None:
        self.cluster.api.create(kind, {**body, "metadata": {**body["metadata"], "namespace": "default"}})

    def make(
        self, like: Object, *, count: int = 1, least: int, owner: Object | None = None, **said: str
    ) -> str:
        """A pod with its labels and owner."""
        name, metadata = objects.name(like), like["metadata"]
        body = pod(
            name,
            (),
            gates=[names.JOINT_GATE],
            resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "any"}] if count else [],
        )
        body["metadata"] |= {
            "labels": metadata["labels"],
            "annotations": {**metadata["annotations"], GANG: "train", GANG_MIN: str(least), **said},
            "ownerReferences": [
                owner
                or {"apiVersion": "x/v1", "kind": "Owner", "name": "train", "uid": "u", "controller": True}
            ],
        }
        if count:
            body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
        made = self.cluster.api.create(PODS, body)
        if count:
            self.cluster.api.create(RESOURCE_CLAIMS, claim(f"{name}-gpu", count=count, owner=made))
        return name

    def went(self) -> list[str]:
        return [
            objects.name(one)
            for one in self.cluster.api.all(PODS)
            if COMMITTED in objects.annotations_of(one)
        ]

    def seats(self) -> list[Object]:
        return [seat for hold in self.cluster.api.all(DEVICE_HOLDS) for seat in hold["spec"]["seats"]]

    def held(self) -> dict[str, int]:
        """Devices by the name of a place that nobody has."""
        return {seat["name"]: len(seat["devices"]) for seat in self.seats() if seat.get("until")}

    def places(self) -> dict[str, str]:
        """By the name of a seat, its node."""
        return {seat["name"]: seat["node"] for seat in self.seats()}

    def told(self, reason: str) -> str:
        return " ".join(one.message for one in self.cluster.told if one.reason == reason)


def annotated(body: dict[str, Any], least: int, **said: str) -> dict[str, Any]:
    return {**body, "metadata": {"annotations": {GANG: "train", GANG_MIN: str(least), **said}}}


def lws_job(policy: str, *, worker: str = "two", least: int = 3, **said: str) -> Object:
    shape = {
        "size": 3,
        "leaderTemplate": annotated(template("one"), least, **said),
        "workerTemplate": annotated(template(worker), least, **said),
    }
    return job(
        "LeaderWorkerSet", "serve", {"replicas": 1, "startupPolicy": policy, "leaderWorkerTemplate": shape}
    )


def member(worker: int, *, size: int = 3) -> Object:
    made = lws(0, worker)
    made["metadata"]["annotations"][f"{LWS}size"] = str(size)
    return made


def test_workers_that_come_ask_what_their_own_template_says() -> None:
    jobs = Jobs(gpus=5, asked={"one": 1, "two": 2})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    assert jobs.went() == ["serve-0"]
    assert jobs.held() == {"serve/0/1": 2, "serve/0/2": 2}
    assert "asks" not in jobs.told(events.STARTS)
    for worker in (1, 2):
        jobs.make(member(worker), count=2, least=3)
    jobs.cluster.settle()
    assert jobs.went() == ["serve-0", "serve-0-1", "serve-0-2"]
    jobs.cluster.assert_no_device_twice()


def test_the_place_of_a_worker_who_comes_is_exchanged_for_one_that_its_own_template_asks() -> None:
    """Its leader, who stands in its row, asks less."""
    jobs = Jobs(gpus=2, nodes=4, asked={"one": 1, "two": 2})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    places = jobs.places()
    ill = places["serve/0/2"]
    jobs.cluster.api.edit(NODES, ill, lambda one: one["spec"].update(unschedulable=True))
    jobs.cluster.settle()
    assert jobs.held() == {"serve/0/1": 2, "serve/0/2": 2}
    assert jobs.places()["serve/0/2"] not in places.values()


def test_a_leader_stays_where_its_workers_do_not_fit_by_their_own_template() -> None:
    jobs = Jobs(gpus=4, asked={"one": 1, "two": 2})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    assert (jobs.went(), jobs.held()) == ([], {})
    assert "2 of 3 members fit" in jobs.told(events.WAITING)


def test_workers_that_are_made_with_their_leader_are_waited_for_however_long() -> None:
    jobs = Jobs(gpus=5, asked={"one": 1, "two": 2})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderCreated"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    jobs.cluster.pass_time(100)
    jobs.cluster.settle()
    assert jobs.went() == []


@pytest.mark.parametrize("policy", ["LeaderCreated", "LeaderReady"])
def test_an_exclusive_group_is_placed_in_one_domain_of_its_label_with_those_who_come(policy: str) -> None:
    """The label is nobody's level. One of the nodes of the first domain is taken: there is room for a leader,
    whose workers, which are bound to its domain, would have none."""
    jobs = Jobs(nodes=4, gpus=1, asked={"one": 1})
    for number, domain in enumerate(("east", "east", "west", "west")):
        jobs.cluster.api.edit(
            NODES, f"n{number}", lambda found, own=domain: found["metadata"]["labels"].update(pool=own)
        )
    jobs.cluster.claim("other")
    jobs.cluster.pod("other", "other", nodeSelector={"kubernetes.io/hostname": "n1"})
    jobs.cluster.settle()
    body = lws_job(policy, worker="one", least=2)
    body["spec"]["leaderWorkerTemplate"]["size"] = 2
    key = f"{LWS}exclusive-topology"
    body["metadata"]["annotations"] = {key: "pool"}
    jobs.job(job_object.LEADER_WORKER_SETS, body)
    leader = member(0, size=2)
    leader["metadata"]["annotations"][key] = "pool"
    jobs.make(leader, least=2)
    jobs.cluster.settle()
    assert jobs.went() == ["serve-0"]
    places = {jobs.cluster.node_of("serve-0-gpu")}
    places |= {seat["node"] for hold in jobs.cluster.api.all(DEVICE_HOLDS) for seat in hold["spec"]["seats"]}
    assert places == {"n2", "n3"}


def test_a_job_that_is_made_anew_under_its_name_is_read_anew() -> None:
    jobs = Jobs(gpus=5, asked={"one": 1, "two": 2})
    for policy, went in (("LeaderCreated", []), ("LeaderReady", ["serve-0"])):
        jobs.job(job_object.LEADER_WORKER_SETS, lws_job(policy))
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "serve", "controller": True}
        jobs.make(member(0), least=3, owner={**owner, "uid": policy})
        jobs.cluster.settle()
        assert jobs.went() == went
        for kind, name in (
            (PODS, "serve-0"),
            (RESOURCE_CLAIMS, "serve-0-gpu"),
            (job_object.LEADER_WORKER_SETS, "serve"),
        ):
            jobs.cluster.api.delete(kind, name, namespace="default")


def test_a_claim_that_cannot_be_read_is_taken_to_be_the_leaders_and_that_is_said() -> None:
    jobs = Jobs(gpus=5)
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady", worker="nowhere"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    assert jobs.held() == {"serve/0/1": 1, "serve/0/2": 1}
    assert "places are kept for 2 that come later, taken to ask what default/serve-0 asks" in jobs.told(
        events.STARTS
    )


def test_workers_that_admission_rewrites_are_taken_to_ask_what_their_leader_asks() -> None:
    """They name no claim before that."""
    jobs = Jobs(gpus=5)
    body = lws_job("LeaderReady", worker="")
    container = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    jobs.job(job_object.LEADER_WORKER_SETS, body)
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    assert jobs.held() == {"serve/0/1": 1, "serve/0/2": 1}
    assert "taken to ask what default/serve-0 asks" in jobs.told(events.STARTS)


def test_claims_of_another_driver_are_held_by_nobody() -> None:
    jobs = Jobs(gpus=1)
    selectors = [{"cel": {"expression": 'device.driver == "other.example"'}}]
    jobs.cluster.api.create(DEVICE_CLASSES, {"metadata": {"name": "other"}, "spec": {"selectors": selectors}})
    spec = claim("x", device_class="other")["spec"]
    jobs.cluster.api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "other"}, "spec": {"spec": spec}})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady", worker="other"))
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    assert (jobs.went(), jobs.held()) == (["serve-0"], {})


def test_members_of_somebody_elses_group_are_those_of_its_job_without_its_initializers() -> None:
    """What names the group is written on pods by others; initializers have ended before."""
    jobs = Jobs(gpus=2)
    roles = [
        replicated("dataset-initializer", 1, 1),
        replicated("node", 1, 1),
        replicated("late", 1, 1, dependsOn=[{"name": "node", "status": "Ready"}]),
    ]
    jobs.job(job_object.JOBSETS, job("JobSet", "train", {"replicatedJobs": roles}))
    words = {"name": "g", "min-available": "2"}
    said = {f"gang.scheduling.koordinator.sh/{word}": text for word, text in words.items()}
    name = jobs.make(job_set_job("node", 0, 1, completion=0), least=2, **said)
    for own in (GANG, GANG_MIN):
        jobs.cluster.api.edit(PODS, name, lambda one, own=own: one["metadata"]["annotations"].pop(own))
    jobs.cluster.settle()
    assert (jobs.went(), jobs.held()) == ([name], {"2/0": 1})


def test_a_leader_without_devices_holds_those_of_its_workers() -> None:
    jobs = Jobs(gpus=4, asked={"one": 1, "two": 2})
    jobs.job(job_object.LEADER_WORKER_SETS, lws_job("LeaderReady"))
    jobs.make(member(0), count=0, least=3)
    jobs.cluster.settle()
    assert (jobs.went(), jobs.held()) == (["serve-0"], {"serve/0/1": 2, "serve/0/2": 2})


def stateful(policy: str) -> Object:
    shape = annotated(template(), 3)
    return job("StatefulSet", "db", {"replicas": 3, "template": shape, "podManagementPolicy": policy})


OF_DB = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "uid-db", "controller": True}


def db(index: int) -> Object:
    return workload_pod(f"db-{index}", {POD_INDEX: str(index)}, owner="db")


@pytest.mark.parametrize(("policy", "went"), [("OrderedReady", ["db-0"]), ("Parallel", [])])
def test_a_stateful_set_goes_in_its_order_with_all_its_places(policy: str, went: list[str]) -> None:
    jobs = Jobs(gpus=3)
    jobs.job(job_object.STATEFUL_SETS, stateful(policy))
    jobs.make(db(0), least=3, owner=OF_DB)
    jobs.cluster.settle()
    assert jobs.went() == went
    assert jobs.held() == ({"db/1": 1, "db/2": 1} if went else {})


def job_set(*, order: str = "", depends: bool = False) -> Object:
    after = {"dependsOn": [{"name": "driver", "status": "Ready"}]} if depends else {}
    spec = {"replicatedJobs": [replicated("driver", 1, 1), replicated("workers", 1, 2, **after)]}
    for role in spec["replicatedJobs"]:
        role["template"]["spec"]["template"] = annotated(template(), 3)
    return job("JobSet", "train", {**spec, "startupPolicy": {"startupPolicyOrder": order or "AnyOrder"}})


@pytest.mark.parametrize(("said", "went"), [({"order": "InOrder"}, 1), ({"depends": True}, 1), ({}, 0)])
def test_jobs_of_a_job_set_go_in_their_order_with_all_their_places(said: dict[str, Any], went: int) -> None:
    jobs = Jobs(gpus=3)
    jobs.job(job_object.JOBSETS, job_set(**said))
    jobs.make(job_set_job("driver", 0, 0, completion=0), least=3)
    jobs.cluster.settle()
    assert len(jobs.went()) == went
    assert jobs.held() == ({"1/0": 1, "1/1": 1} if went else {})


def test_of_those_that_are_made_later_the_next_ones_have_their_places() -> None:
    jobs = Jobs(gpus=3)
    roles = [
        replicated("last", 1, 1, dependsOn=[{"name": "next", "status": "Ready"}]),
        replicated("next", 1, 1, dependsOn=[{"name": "first", "status": "Ready"}]),
        replicated("first", 1, 1),
    ]
    for role in roles:
        role["template"]["spec"]["template"] = annotated(template(), 2)
    jobs.job(job_object.JOBSETS, job("JobSet", "train", {"replicatedJobs": roles}))
    jobs.make(job_set_job("first", 0, 2, completion=0), least=2)
    jobs.cluster.settle()
    assert jobs.held() == {"1/0": 1}


def exclusive(body: Object) -> Object:
    """As a JobSet's webhook has it: a follower has no node of its own before its leader has one."""
    said = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    return {**body, "metadata": {**body["metadata"], "annotations": said}}


def test_an_exclusive_job_set_starts_although_its_followers_are_refused_until_its_leaders_have_a_node() -> (
    None
):
    """JobSet refuses a pod of index above 0 until that of index 0 has a node: held until all are there, the
    gang would never start; two JobSets with room for one do not both start their leaders."""
    jobs = Jobs(gpus=3)
    jobs.cluster.api.edit(NODES, "n0", lambda one: one["metadata"]["labels"].update(rack="r1"))
    for name in ("a", "b"):
        spec = {"replicatedJobs": [replicated("workers", 1, 2)]}
        spec["replicatedJobs"][0]["template"]["spec"]["template"] = {
            **template(),
            "metadata": {"annotations": {GANG: name, GANG_MIN: "2"}},
        }
        jobs.job(job_object.JOBSETS, exclusive(job("JobSet", name, spec)))
        leader = job_set_job("workers", 0, 0, completion=0)
        leader["metadata"] |= {
            "name": f"{name}-0",
            "labels": {**leader["metadata"]["labels"], "jobset.sigs.k8s.io/jobset-name": name},
        }
        jobs.make(exclusive_pod(leader), least=2, **{GANG: name})
    jobs.cluster.settle()
    assert jobs.went() == ["a-0"]
    assert jobs.held() == {"0/1": 1}
    follower = job_set_job("workers", 0, 0, completion=1)
    follower["metadata"] |= {
        "name": "a-1",
        "labels": {**follower["metadata"]["labels"], "jobset.sigs.k8s.io/jobset-name": "a"},
    }
    jobs.make(exclusive_pod(follower), least=2, **{GANG: "a"})
    jobs.cluster.settle()
    assert jobs.went() == ["a-0", "a-1"]


def exclusive_pod(body: Object) -> Object:
    said = {**body["metadata"]["annotations"], "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    return {**body, "metadata": {**body["metadata"], "annotations": said}}


def test_an_mpijob_whose_launcher_waits_for_its_workers_counts_it() -> None:
    jobs = Jobs(gpus=2)
    roles = {
        "Worker": {"replicas": 2, "template": annotated(template(), 3)},
        "Launcher": {"replicas": 1, "template": annotated(template(""), 3)},
    }
    spec = {"mpiReplicaSpecs": roles, "launcherCreationPolicy": "WaitForWorkersReady"}
    jobs.job(job_object.MPI_JOBS, job("MPIJob", "train", spec))
    owner = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "name": "train",
        "uid": "u",
        "controller": True,
    }
    jobs.make(mpi("worker", 0, claims=True), least=3, owner=owner)
    jobs.cluster.settle()
    assert jobs.went() == []
    jobs.make(mpi("worker", 1, claims=True), least=3, owner=owner)
    jobs.cluster.settle()
    assert jobs.went() == ["train-worker-0", "train-worker-1"]


def test_members_that_come_have_the_level_of_their_own_role() -> None:
    """The leader's role says nothing; the workers' is to be on one node, of which one has room for both."""
    jobs = Jobs(gpus=2, asked={"one": 1, "two": 2})
    jobs.cluster = cluster_of_nodes((2, 2, 1), jobs.cluster)
    role = {f"{GANG}-role": "workers", f"{GANG}-role-topology": "node"}
    body = lws_job("LeaderReady", worker="one")
    body["spec"]["leaderWorkerTemplate"]["workerTemplate"] = annotated(template("one"), 3, **role)
    jobs.job(job_object.LEADER_WORKER_SETS, body)
    jobs.make(member(0), least=3)
    jobs.cluster.settle()
    (hold,) = jobs.cluster.api.all(DEVICE_HOLDS)
    places = [seat["node"] for seat in hold["spec"]["seats"] if seat.get("until")]
    assert len(places) == 2
    assert len(set(places)) == 1


def test_slices_of_those_who_come_are_kept_with_the_leader() -> None:
    """Leader and three workers in slices of two, each on one node: who comes later has a place in the slice
    of his number, and a node with one device left is no place for half a slice."""
    jobs = Jobs(gpus=3)
    jobs.cluster = cluster_of_nodes((1, 2), jobs.cluster)
    said = {f"{GANG}-slice-size": "2", f"{GANG}-slice-topology": "node"}
    body = lws_job("LeaderReady", worker="one", least=4, **said)
    body["spec"]["leaderWorkerTemplate"]["size"] = 4
    jobs.job(job_object.LEADER_WORKER_SETS, body)
    jobs.make(member(0, size=4), least=4, **said)
    jobs.cluster.settle()
    assert jobs.went() == ["serve-0"]
    (hold,) = jobs.cluster.api.all(DEVICE_HOLDS)
    seats = {seat["name"]: seat["node"] for seat in hold["spec"]["seats"]}
    assert seats["serve/0/1"] == seats["serve/0/0"] == jobs.cluster.node_of("serve-0-gpu")
    assert seats["serve/0/2"] == seats["serve/0/3"] != seats["serve/0/1"]
    for worker in (3, 2, 1):
        jobs.make(member(worker, size=4), least=4, **said)
    jobs.cluster.settle()
    found = {f"serve/0/{worker}": jobs.cluster.node_of(f"serve-0-{worker}-gpu") for worker in (1, 2, 3)}
    assert found.items() <= seats.items()


def cluster_of_nodes(gpus: Iterable[int], before: JointCluster) -> JointCluster:
    from koordra.api.kinds import NODES, RESOURCE_SLICES
    from tests.fakes.joint_cluster import gpu_slice, node

    for number, have in enumerate(gpus, start=1):
        before.api.create(NODES, node(f"n{number}"))
        before.api.create(RESOURCE_SLICES, gpu_slice(f"n{number}", have))
    return before


def test_a_pass_reads_so_many_jobs_and_the_next_one_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting, "MOST_READS", 3)
    jobs = Jobs(gpus=8)
    for group in range(4):
        name = f"s{group}"
        body = stateful("OrderedReady")
        body["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        body["spec"] |= {"replicas": 2, "template": annotated(template(), 2, **{GANG: name})}
        jobs.job(job_object.STATEFUL_SETS, body)
        owner = {**OF_DB, "name": name, "uid": f"uid-{name}"}
        first = workload_pod(f"{name}-0", {POD_INDEX: "0"}, owner=name)
        jobs.make(first, least=2, owner=owner, **{GANG: name})
    jobs.cluster.caches.deliver()
    jobs.cluster.reconciler.reconcile()
    assert len(jobs.went()) < 4
    jobs.cluster.pass_time(1.5)
    jobs.cluster.settle()
    assert jobs.went() == ["s0-0", "s1-0", "s2-0", "s3-0"]
