"""Which claims a pod waits for, read from its spec and status as the kubelet reads them."""

from __future__ import annotations

from koordra.api import kinds, objects


def test_pod_claim_names() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "coming", "resourceClaimTemplateName": "t"},
                {"name": "unneeded", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "unneeded"}]
        },
    }
    assert objects.pod_claim_names(pod) == {"own": "shared", "made": "p-made-x", "coming": None}


def test_missing_parts_read_as_empty() -> None:
    assert objects.key({}) == "default/"
    assert objects.describe({"kind": "Node", "metadata": {"name": "n"}}) == "Node n"
    assert not objects.is_deleting({"metadata": None})
    assert objects.pod_claim_names({}) == {}


def test_paths() -> None:
    assert (
        kinds.PODS.path(namespace="a", name="p", subresource="status") == "/api/v1/namespaces/a/pods/p/status"
    )
    assert kinds.RESOURCE_CLAIMS.path() == "/apis/resource.k8s.io/v1/resourceclaims"
    assert kinds.NODES.path(namespace="ignored", name="n") == "/api/v1/nodes/n"
