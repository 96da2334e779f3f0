"""deploy/kustomize/cert-manager, alone and under components: what cert-manager's cainjector needs to make the
API server trust every webhook of koordra's.

It looks at the configuration alone: the annotation names a Certificate, whose Secret holds the CA. Where
there is none, it writes nothing (cert-manager, pkg/controller/cainjector/sources.go).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.controller.webhook.cert_rotation import SERVICE_NAME
from tests.fakes.kustomized import COMPONENTS, ROOT, built

ANNOTATION = "cert-manager.io/inject-ca-from"
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def configurations(documents: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [obj for (kind, _), obj in documents.items() if kind in KINDS]


@pytest.mark.parametrize(
    "components",
    [(), ("legacy",), ("elastic", "legacy", "node-labels")],
    ids="+".join,
)
def test_every_webhook_is_trusted(tmp_path: Path, components: tuple[str, ...]) -> None:
    documents = built(tmp_path, *components, "cert-manager")
    found = configurations(documents)
    assert len(found) == 2 + ("legacy" in components)
    for obj in found:
        namespace, _, name = obj["metadata"]["annotations"][ANNOTATION].partition("/")
        certificate = documents["Certificate", name]
        assert certificate["metadata"]["namespace"] == namespace
        for webhook in obj["webhooks"]:
            service = webhook["clientConfig"]["service"]
            assert f"{service['name']}.{service['namespace']}.svc" in certificate["spec"]["dnsNames"]
    (pod,) = [documents["Deployment", "koordra-controller"]["spec"]["template"]["spec"]]
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    mounts = {each["mountPath"]: secrets.get(each["name"]) for each in pod["containers"][0]["volumeMounts"]}
    assert "--webhook-certificates=/etc/koordra/webhook" in pod["containers"][0]["args"]
    assert mounts["/etc/koordra/webhook"] == documents["Certificate", SERVICE_NAME]["spec"]["secretName"]


def test_without_cert_manager_nothing_is_injected(tmp_path: Path) -> None:
    """The annotation of `legacy` then names a certificate that is not there: the controller writes the CA."""
    documents = built(tmp_path, "legacy")
    assert len(configurations(documents)) == 3
    assert not [kind for kind, _ in documents if kind in ("Certificate", "Issuer")]
    args = documents["Deployment", "koordra-controller"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [each for each in args if each.startswith("--webhook-certificates")]


def test_every_configuration_that_a_component_adds_names_the_certificate() -> None:
    """Without kubectl, too."""
    certificates = ROOT / "cert-manager" / "certificate.yaml"
    named = {
        f"{each['metadata']['namespace']}/{each['metadata']['name']}"
        for each in yaml.safe_load_all(certificates.read_text())
        if each["kind"] == "Certificate"
    }
    added = [
        obj
        for component in COMPONENTS
        for path in (ROOT / component).glob("*.yaml")
        for obj in yaml.safe_load_all(path.read_text())
        if obj.get("kind") in KINDS
    ]
    assert {obj["metadata"]["name"] for obj in added} == {"koordra-legacy", "koordra-shares"}
    assert {obj["metadata"]["annotations"][ANNOTATION] for obj in added} == named
