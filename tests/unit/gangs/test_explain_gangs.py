"""`koordra explain` about gangs: how many members fit, and what the others lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from koordra.api import names
from koordra.api.objects import Object
from koordra.api.opaque.imex import ImexDomain
from koordra.cli.cluster.explain import explain as command
from koordra.cli.plan import plan_command
from koordra.controller.gangs.declared.workload_kind import LWS
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod


def objects_of(members: int, *, least: int) -> list[Object]:
    found: list[Object] = [
        {"apiVersion": "v1", "kind": "Node", **node("n0")},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **device_class(names.CLASS_GPU, "gpu")},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **gpu_slice("n0", 2)},
    ]
    for number in range(members):
        name = f"w{number}"
        found.append(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim(name, uid=f"c{number}")}
        )
        member = pod(name, [name], gates=[names.JOINT_GATE])
        member["metadata"] |= {
            "uid": f"p{number}",
            "annotations": {"koordra.io/gang": "train", "koordra.io/gang-min": str(least)},
        }
        found.append({"apiVersion": "v1", "kind": "Pod", **member})
    return found


def explained(folder: Path, found: list[Object], *arguments: str) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    done = CliRunner().invoke(command, ["-f", str(path), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_gang_that_does_not_fit_says_how_many_would(tmp_path: Path) -> None:
    text = explained(tmp_path, objects_of(3, least=3))
    assert "gang default/train: Waiting, 3 members, 3 have to start together" in text
    assert "2 of 3 members fit" in text
    shown: dict[str, Any] = json.loads(explained(tmp_path, objects_of(3, least=3), "-o", "json"))
    (gang,) = shown["gangs"]
    assert (gang["stage"], gang["fit"], gang["least"]) == ("Waiting", 2, 3)


def test_levels_that_the_operator_wrote_are_told_to_the_command_too(tmp_path: Path) -> None:
    found = objects_of(2, least=2)
    for one in found:
        if one["kind"] == "Pod":
            one["metadata"]["annotations"]["koordra.io/gang-topology"] = "rack"
        if one["kind"] == "Node":
            one["metadata"]["labels"] |= {"dc/rack": "a"}
    assert "rack is no level of the fabric" in explained(tmp_path, found)
    text = explained(tmp_path, found, "gang/train", "--topology-levels", "row=dc/row,rack=dc/rack")
    assert "2 of 2 members fit now" in text
    wrong = CliRunner().invoke(command, ["gang/train", "--topology-levels", "node"])
    assert "--topology-levels" in str(wrong.exception)
    planned = [
        CliRunner()
        .invoke(plan_command, ["-f", str(tmp_path / "objects.json"), *more], catch_exceptions=False)
        .output
        for more in ((), ("--topology-levels", "rack=dc/rack"))
    ]
    assert ["no level of the fabric" in text for text in planned] == [True, False]


def test_members_that_are_made_later_are_read_of_their_job(tmp_path: Path) -> None:
    """One waits for its leader to be Ready and asks for two devices: with the job, that is known."""
    found = objects_of(1, least=2)
    pod_of = next(one for one in found if one["kind"] == "Pod")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "d", "controller": True}
    pod_of["metadata"] |= {"labels": {"apps.kubernetes.io/pod-index": "0"}, "ownerReferences": [owner]}
    assert "1 of 2 members are there" in explained(tmp_path, found)
    template = {
        "metadata": {"annotations": pod_of["metadata"]["annotations"]},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
    }
    database = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default", "uid": "d"},
        "spec": {"replicas": 2, "template": template},
    }
    found += [
        database,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one", "namespace": "default"},
            "spec": {"spec": claim("x")["spec"]},
        },
    ]
    made = next(one for one in found if one["kind"] == "ResourceClaim")
    made["metadata"] |= claim("w0", owner=pod_of)["metadata"] | {"uid": "c0"}
    text = explained(tmp_path, found, "gang/train")
    assert "2 of 2 members fit now, 1 of which are made later" in text


def test_a_gang_whose_members_are_missing_says_so(tmp_path: Path) -> None:
    text = explained(tmp_path, objects_of(2, least=3))
    assert "gang default/train: Gathering" in text
    assert "2 of 3 members are there" in text


def test_a_gang_that_waits_for_anothers_imex_domain_is_told_whose_it_is(tmp_path: Path) -> None:
    clique = "00112233-4455-6677-8899-aabbccddeeff.1"
    published = gpu_slice("n0", 4)
    attributes = {
        "type": {"string": names.TYPE_IMEX},
        "allocator": {"string": "controller"},
        names.ATTR_CLIQUE: {"string": clique},
    }
    published["spec"]["devices"].append(
        {"name": names.IMEX_DEVICE, "attributes": attributes, "allowMultipleAllocations": True}
    )
    found = objects_of(1, least=1)
    found[2] = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **published}
    imex_class = device_class(names.CLASS_IMEX, names.TYPE_IMEX)
    found.append({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **imex_class})
    (wanted,) = [one for one in found if one["kind"] == "ResourceClaim"]
    wanted["spec"]["devices"]["requests"].append(
        {"name": "imex", "exactly": {"deviceClassName": names.CLASS_IMEX}}
    )
    held = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim("held", uid="held")}
    given = {"request": "imex", "driver": names.DRIVER, "pool": "n0", "device": names.IMEX_DEVICE}
    held["status"] = {
        "allocation": {
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
                ]
            },
            "devices": {
                "results": [{**given, "shareID": "5c1f0000-0000-5000-8000-000000000001"}],
                "config": [ImexDomain("gang default/first", clique).entry()],
            },
        }
    }
    text = " ".join(explained(tmp_path, [*found, held]).split())
    assert "ImexDomainInUse" in text
    assert "its IMEX channels are in the domain of gang default/first" in text
    assert "ImexDomainInUse" not in explained(tmp_path, found)


def leaders(number: int) -> list[Object]:
    """Of a LeaderWorkerSet with groups of two, whose workers come once they are scheduled."""
    found = objects_of(number, least=2)
    for obj in found:
        if obj["kind"] == "Pod":
            index = obj["metadata"]["name"].removeprefix("w")
            obj["metadata"]["labels"] = {f"{LWS}worker-index": "0", f"{LWS}group-index": index}
            obj["metadata"]["annotations"] |= {f"{LWS}size": "2", f"{LWS}exclusive-topology": "rack"}
            obj["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
            named = {"name": "gpu", "resourceClaimName": obj["metadata"]["name"]}
            obj["status"] = {**obj.get("status", {}), "resourceClaimStatuses": [named]}
        elif obj["kind"] == "Node":
            obj["metadata"]["labels"]["rack"] = "r1"
        elif obj["kind"] == "ResourceClaim":
            pod_uid = f"p{obj['metadata']['name'].removeprefix('w')}"
            owner = {"kind": "Pod", "name": obj["metadata"]["name"], "uid": pod_uid, "controller": True}
            obj["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
            obj["metadata"]["ownerReferences"] = [owner]
    return found


def test_a_leader_that_goes_first_is_counted_with_who_comes(tmp_path: Path) -> None:
    text = explained(tmp_path, leaders(1))
    assert "gang default/train:0: Waiting, 1 members, 2 have to start together" in text
    assert "2 of 2 members fit now, 1 of which are made later" in text


def test_replicas_are_told_one_by_one_and_found_by_the_name_that_they_share(tmp_path: Path) -> None:
    text = explained(tmp_path, leaders(2))
    assert "gang default/train:0: Waiting" in text
    assert "gang default/train:1: Waiting" in text
    path = tmp_path / "objects.json"
    done = CliRunner().invoke(command, ["-f", str(path), "gang/train"])
    assert done.exit_code != 0
    assert "its replicas are gangs of their own: train:0, train:1" in str(done.exception or done.output)
