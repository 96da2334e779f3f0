"""create, get, update, patch, delete: conflicts, status separation, dry run, graceful deletion."""

from __future__ import annotations

import pytest

from tests.unit.devcluster.calling import CLAIMS, PODS, RESOURCE, Caller
from tests.unit.devcluster.manifests import allocation, claim, node, pod

STRATEGIC = "application/strategic-merge-patch+json"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def test_create_fills_in_what_the_server_knows(api: Caller) -> None:
    made = api.ok("POST", PODS, pod("web"))
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"] == "2026-11-21T12:00:00Z"
    assert metadata["generation"] == 1
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["serviceAccountName"] == "default"
    assert api.ok("GET", f"{PODS}/web") == made


def test_every_write_takes_a_new_resource_version(api: Caller) -> None:
    first = api.ok("POST", CLAIMS, claim("a"))
    second = api.ok("POST", CLAIMS, claim("b"))
    assert int(second["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 1


def test_generate_name_appends_five_letters(api: Caller) -> None:
    body = claim()
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "train-"
    names = {api.ok("POST", CLAIMS, body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("train-") and len(name) == 11 for name in names)


def test_a_taken_name_is_already_exists(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    refusal = api.refused(409, "POST", CLAIMS, claim("a"))
    assert refusal["reason"] == "AlreadyExists"
    assert refusal["message"] == 'resourceclaims.resource.k8s.io "a" already exists'


def test_a_missing_object_is_not_found(api: Caller) -> None:
    refusal = api.refused(404, "GET", f"{CLAIMS}/a")
    assert refusal["message"] == 'resourceclaims.resource.k8s.io "a" not found'
    assert refusal["details"] == {"name": "a", "group": "resource.k8s.io", "kind": "resourceclaims"}


@pytest.mark.parametrize(
    "path", ["/api/v2", "/apis/nowhere/v1/things", "/api/v1/namespaces/default/limitranges"]
)
def test_unknown_paths_are_not_found(api: Caller, path: str) -> None:
    api.refused(404, "GET", path)


def test_a_stale_update_conflicts_and_changes_nothing(api: Caller) -> None:
    old = api.ok("POST", CLAIMS, claim("a"))
    api.patch(f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    refusal = api.refused(
        409, "PUT", f"{CLAIMS}/a", old | {"metadata": {**old["metadata"], "labels": {"x": "2"}}}
    )
    assert refusal["reason"] == "Conflict"
    assert api.ok("GET", f"{CLAIMS}/a")["metadata"]["labels"] == {"x": "1"}


def test_a_patch_with_a_stale_version_conflicts(api: Caller) -> None:
    old = api.ok("POST", CLAIMS, claim("a"))
    api.patch(f"{CLAIMS}/a", {"metadata": {"labels": {"x": "1"}}})
    patch = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"], "labels": {"x": "2"}}}
    api.refused(409, "PATCH", f"{CLAIMS}/a", patch, content_type="application/merge-patch+json")


def test_an_update_that_changes_nothing_writes_nothing(api: Caller) -> None:
    made = api.ok("POST", CLAIMS, claim("a"))
    assert (
        api.ok("PUT", f"{CLAIMS}/a", made)["metadata"]["resourceVersion"]
        == made["metadata"]["resourceVersion"]
    )


def test_a_lease_can_only_be_updated_with_its_version(api: Caller) -> None:
    api.ok("POST", LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}
    refusal = api.refused(422, "PUT", f"{LEASES}/l", body)
    assert "must be specified for an update" in refusal["message"]


def test_status_and_spec_are_written_apart(api: Caller) -> None:
    created = api.ok("POST", CLAIMS, claim("a") | {"status": {"allocation": allocation()}})
    assert created["status"] == {}
    labelled = api.ok("PUT", f"{CLAIMS}/a", created | {"status": {"allocation": allocation()}})
    assert labelled["status"] == {}
    body = labelled | {"status": {"allocation": allocation()}}
    body["metadata"] = {**body["metadata"], "labels": {"ignored": "yes"}}
    written = api.ok("PUT", f"{CLAIMS}/a/status", body)
    assert written["status"]["allocation"] == allocation()
    assert "labels" not in written["metadata"]


def test_nodes_may_be_created_with_a_status(api: Caller) -> None:
    assert api.ok("POST", "/api/v1/nodes", node())["status"]["capacity"]["cpu"] == "8"


def test_generation_counts_changes_of_the_spec_only(api: Caller) -> None:
    api.ok("POST", PODS, pod("a", schedulingGates=[{"name": "example.com/gate"}]))
    labelled = api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    assert labelled["metadata"]["generation"] == 1
    lifted = api.patch(f"{PODS}/a", {"spec": {"schedulingGates": None}})
    assert lifted["metadata"]["generation"] == 2
    assert "generation" not in api.ok("POST", CLAIMS, claim("a"))["metadata"]


def test_dry_run_answers_and_stores_nothing(api: Caller) -> None:
    assert api.ok("POST", f"{CLAIMS}?dryRun=All", claim("a"))["metadata"]["uid"]
    api.refused(404, "GET", f"{CLAIMS}/a")
    api.ok("POST", CLAIMS, claim("a"))
    api.ok("PATCH", f"{CLAIMS}/a?dryRun=All", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC)
    api.ok("DELETE", f"{CLAIMS}/a?dryRun=All")
    assert "labels" not in api.ok("GET", f"{CLAIMS}/a")["metadata"]


def test_metadata_that_never_changes(api: Caller) -> None:
    made = api.ok("POST", CLAIMS, claim("a"))
    body = made | {"metadata": {**made["metadata"], "uid": "other"}}
    assert api.refused(409, "PUT", f"{CLAIMS}/a", body)["reason"] == "Conflict"
    api.refused(400, "PUT", f"{CLAIMS}/a", claim("b"))


def test_server_side_apply_creates_then_merges_by_map_key(api: Caller) -> None:
    applied = {"apiVersion": "v1", "kind": "Pod", **pod("a"), "spec": pod()["spec"]}
    code, made = api(
        "PATCH", f"{PODS}/a?fieldManager=x", applied, content_type="application/apply-patch+yaml"
    )
    assert code in (200, 201)
    again = {
        "metadata": {"labels": {"x": "1"}},
        "spec": {"containers": [{"name": "main", "image": "busybox:2"}]},
    }
    merged = api.patch(f"{PODS}/a", again, "application/apply-patch+yaml")
    assert merged["metadata"]["uid"] == made["metadata"]["uid"]
    assert [one["image"] for one in merged["spec"]["containers"]] == ["busybox:2"]


def test_delete_removes_and_says_what(api: Caller) -> None:
    made = api.ok("POST", CLAIMS, claim("a"))
    gone = api.ok("DELETE", f"{CLAIMS}/a")
    assert gone["status"] == "Success"
    assert gone["details"]["uid"] == made["metadata"]["uid"]
    api.refused(404, "GET", f"{CLAIMS}/a")


def test_delete_of_another_object_of_that_name_conflicts(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    api.refused(409, "DELETE", f"{CLAIMS}/a", {"preconditions": {"uid": "other"}})
    api.ok("GET", f"{CLAIMS}/a")


def test_finalizers_hold_an_object_until_the_last_is_gone(api: Caller) -> None:
    body = claim("a")
    body["metadata"]["finalizers"] = ["example.com/one", "example.com/two"]
    api.ok("POST", CLAIMS, body)
    assert api.ok("DELETE", f"{CLAIMS}/a")["metadata"]["deletionTimestamp"]
    added = {"metadata": {"finalizers": ["example.com/one", "example.com/two", "example.com/three"]}}
    refusal = api.refused(422, "PATCH", f"{CLAIMS}/a", added, content_type="application/merge-patch+json")
    assert "no new finalizers can be added" in refusal["message"]
    api.patch(f"{CLAIMS}/a", {"metadata": {"finalizers": ["example.com/two"]}})
    api.ok(
        "PATCH",
        f"{CLAIMS}/a",
        {"metadata": {"finalizers": None}},
        content_type="application/merge-patch+json",
    )
    api.refused(404, "GET", f"{CLAIMS}/a")


def test_a_pod_without_a_node_goes_at_once(api: Caller) -> None:
    api.ok("POST", PODS, pod("a"))
    api.ok("DELETE", f"{PODS}/a")
    api.refused(404, "GET", f"{PODS}/a")


def test_a_pod_on_a_node_waits_for_its_kubelet(api: Caller) -> None:
    uid = api.ok("POST", PODS, pod("a", nodeName="n1"))["metadata"]["uid"]
    marked = api.ok("DELETE", f"{PODS}/a")["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 30
    assert marked["deletionTimestamp"] == "2026-11-21T12:00:30Z"
    assert marked["generation"] == 2
    shorter = api.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 5})["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    longer = api.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 60})["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    api.refused(409, "DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}})
    api.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    api.refused(404, "GET", f"{PODS}/a")


def test_a_finished_pod_goes_at_once(api: Caller) -> None:
    api.ok("POST", PODS, pod("a", nodeName="n1"))
    api.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
    api.ok("DELETE", f"{PODS}/a")
    api.refused(404, "GET", f"{PODS}/a")


def test_delete_collection_honours_selectors(api: Caller) -> None:
    for name, team in (("a", "red"), ("b", "blue")):
        body = claim(name)
        body["metadata"]["labels"] = {"team": team}
        api.ok("POST", CLAIMS, body)
    api.ok("DELETE", f"{CLAIMS}?labelSelector=team%3Dred".replace("%3D", "="))
    assert [one["metadata"]["name"] for one in api.ok("GET", CLAIMS)["items"]] == ["b"]


def test_a_terminating_namespace_takes_nothing_new_and_goes_with_its_finalizer(api: Caller) -> None:
    api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    going = api.ok("DELETE", "/api/v1/namespaces/team")
    assert going["status"]["phase"] == "Terminating"
    path = f"{RESOURCE}/namespaces/team/resourceclaims"
    body = claim() | {"metadata": {"name": "c"}}
    assert "is being terminated" in api.refused(403, "POST", path, body)["message"]
    api.ok("PUT", "/api/v1/namespaces/team/finalize", going | {"spec": {}})
    api.refused(404, "GET", "/api/v1/namespaces/team")


def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Caller) -> None:
    path = f"{RESOURCE}/namespaces/nowhere/resourceclaims"
    refusal = api.refused(404, "POST", path, claim() | {"metadata": {"name": "c"}})
    assert refusal["message"] == 'namespaces "nowhere" not found'


def test_a_pod_needs_its_service_account(api: Caller) -> None:
    refusal = api.refused(403, "POST", PODS, pod("a", serviceAccountName="robot"))
    assert (
        'error looking up service account default/robot: serviceaccount "robot" not found'
        in refusal["message"]
    )


def test_binding_assigns_a_node_once(api: Caller) -> None:
    api.ok("POST", PODS, pod("a"))
    binding = {"target": {"kind": "Node", "name": "n1"}}
    assert api("POST", f"{PODS}/a/binding", binding)[0] == 201
    bound = api.ok("GET", f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["generation"] == 1
    condition = bound["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == (
        "PodScheduled",
        "True",
        1,
    )
    refusal = api.refused(409, "POST", f"{PODS}/a/binding", binding)
    assert 'is already assigned to node "n1"' in refusal["message"]


def test_binding_refuses_gated_and_other_pods(api: Caller) -> None:
    api.ok("POST", PODS, pod("a", schedulingGates=[{"name": "example.com/gate"}]))
    target = {"target": {"name": "n1"}}
    assert (
        "non-empty .spec.schedulingGates" in api.refused(409, "POST", f"{PODS}/a/binding", target)["message"]
    )
    api.patch(f"{PODS}/a", {"spec": {"schedulingGates": None}})
    api.refused(409, "POST", f"{PODS}/a/binding", target | {"metadata": {"uid": "other"}})
    api.refused(422, "POST", f"{PODS}/a/binding", {"target": {}})


def test_eviction_deletes_gracefully(api: Caller) -> None:
    api.ok("POST", PODS, pod("a", nodeName="n1"))
    assert api("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}})[0] == 201
    assert api.ok("GET", f"{PODS}/a")["metadata"]["deletionTimestamp"]


def test_both_event_apis_show_the_same_events(api: Caller) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "reason": "Started",
        "message": "hello",
        "source": {"component": "kubelet"},
    }
    api.ok("POST", "/api/v1/namespaces/default/events", event)
    shown = api.ok("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (shown["apiVersion"], shown["note"], shown["regarding"]["name"]) == (
        "events.k8s.io/v1",
        "hello",
        "p",
    )
    new = {"metadata": {"name": "f"}, "eventTime": "2026-11-21T10:00:00Z", "note": "again", "reason": "R"}
    api.ok("POST", "/apis/events.k8s.io/v1/namespaces/default/events", new)
    stored = api.ok("GET", "/api/v1/namespaces/default/events/f")
    assert (stored["apiVersion"], stored["message"]) == ("v1", "again")
    assert stored["eventTime"] == "2026-11-21T10:00:00.000000Z"


def test_admin_access_needs_a_labelled_namespace(api: Caller) -> None:
    refusal = api.refused(422, "POST", CLAIMS, claim("a", adminAccess=True))
    assert "admin access to devices requires" in refusal["message"]
    api.patch(
        "/api/v1/namespaces/default",
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    api.ok("POST", CLAIMS, claim("a", adminAccess=True))


@pytest.mark.parametrize("method", ["PUT", "PATCH", "POST"])
def test_methods_that_make_no_sense(api: Caller, method: str) -> None:
    path = f"{CLAIMS}/a/status" if method == "POST" else CLAIMS
    assert api(method, path, {}, content_type="application/merge-patch+json")[0] == 405


def test_a_body_that_is_not_json(api: Caller) -> None:
    from koordra_devcluster.apiserver.requests import Request

    response = api.api.handle(Request("POST", CLAIMS, {}, {"content-type": "application/json"}, b"{"))
    assert response.code == 400


def test_a_patch_of_an_unknown_form(api: Caller) -> None:
    api.ok("POST", CLAIMS, claim("a"))
    api.refused(415, "PATCH", f"{CLAIMS}/a", {}, content_type="text/plain")
