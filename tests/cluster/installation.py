"""koordra installed from deploy/kustomize on a cluster of the suite's
(koordra_devcluster.demo.installation), and who its programs are there: tokens and kubeconfigs of
ServiceAccounts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.controller.webhook.cert_rotation import CONFIGURATIONS, NAME
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.demo import installation
from koordra_devcluster.demo.installation import ROOT, WEBHOOKS, documents, free_port, kind_of


class Installation(installation.Installation):
    """What a suite installs, and can take its webhooks away of."""

    def remove_webhooks(self) -> None:
        """Without the controller behind them they would refuse everybody's claims."""
        for obj in self.applied:
            if obj["kind"] in WEBHOOKS:
                try:
                    self.client.delete(kind_of(obj), objects.name(obj))
                except NotFound:
                    continue

    @contextmanager
    def webhook_away(self, name: str) -> Iterator[None]:
        """Nobody answers the API server for one entry of the validating configuration."""
        kind = CONFIGURATIONS[1]
        entries = self.client.get(kind, NAME)["webhooks"]
        (at,) = (at for at, entry in enumerate(entries) if entry["name"] == name)
        before = entries[at]["clientConfig"]["url"]
        path = f"/webhooks/{at}/clientConfig/url"

        def call(url: str) -> None:
            step = {"op": "replace", "path": path, "value": url}
            self.client.patch(kind, NAME, [step], content_type="application/json-patch+json")

        call(before.replace(str(self.webhook_port), str(free_port())))
        try:
            yield
        finally:
            call(before)


def token(
    client: KubeClient, account: str, *, bound_to: Object | None = None, namespace: str = "koordra-system"
) -> str:
    """A token of a ServiceAccount, bound to an object where one is given."""
    spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": []}
    if bound_to is not None:
        spec["boundObjectRef"] = {
            "kind": bound_to["kind"],
            "apiVersion": bound_to["apiVersion"],
            "name": objects.name(bound_to),
            "uid": objects.uid(bound_to),
        }
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec}
    answer = client.create(
        kinds.SERVICE_ACCOUNTS, body, namespace=namespace, name=account, subresource="token"
    )
    return str(answer["status"]["token"])


def account_kubeconfig(
    client: KubeClient,
    kubeconfig: str,
    path: Path,
    *,
    account: str,
    bound_to: Object | None = None,
    namespace: str = "koordra-system",
) -> Path:
    """A kubeconfig that is the ServiceAccount's instead of the administrator's."""
    document = yaml.safe_load(Path(kubeconfig).read_text())
    for entry in document["clusters"]:
        url = urlsplit(entry["cluster"]["server"])
        entry["cluster"]["server"] = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
        authority = entry["cluster"].get("certificate-authority")
        if authority:
            entry["cluster"]["certificate-authority"] = str((Path(kubeconfig).parent / authority).resolve())
    bearer = token(client, account, bound_to=bound_to, namespace=namespace)
    for entry in document["users"]:
        entry["user"] = {"token": bearer}
    path.write_text(yaml.safe_dump(document))
    return path


def dry_run(client: KubeClient, obj: Object) -> Object:
    """What the server would store, strictly judged; raises ApiError with its words."""
    kind, place = kind_of(obj), objects.metadata(obj).get("namespace")
    query = {"dryRun": "All", "fieldManager": "koordra-test", "fieldValidation": "Strict", "force": "true"}
    path = kind.path(namespace=place, name=objects.name(obj))
    return client._answer("PATCH", path, query=query, body=obj, content_type="application/apply-patch+yaml")


__all__ = [
    "ROOT",
    "WEBHOOKS",
    "Installation",
    "account_kubeconfig",
    "documents",
    "dry_run",
    "free_port",
    "kind_of",
    "token",
]
