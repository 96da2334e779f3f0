"""How `koordra explain` asks the cluster's controller: through the API server's proxy of its Service, with
the caller's own token.

The API server takes the Authorization of a request that it forwards away, so the token goes in a header of
koordra's. Who has a client certificate and no token asks the API server for one of the ServiceAccount
`koordra-explain` (TokenRequest), for ten minutes and for the controller alone: administrators may, and
whomever the Role `koordra-explain-all` is bound to.

The API server picks one of the Service's replicas for each request; those that do not lead say so and are
passed over by asking again. Where nobody answers the cluster is read instead, and that is said.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from koordra.api import objects
from koordra.api.kinds import SERVICE_ACCOUNTS, SERVICES
from koordra.cli.options import say
from koordra.cli.output import Document
from koordra.cli.progress import progress
from koordra.controller.explain.question import (
    ACCOUNT,
    AUDIENCE,
    NOT_ALLOWED,
    NOT_LEADING,
    TOKEN_HEADER,
    Question,
    not_there,
    path_of,
)
from koordra.errors import ApiError, Forbidden, NotFound
from koordra.kube.client import KubeClient

NAMESPACE: Final = "koordra-system"
SERVICE: Final = "https:koordra-webhook:webhook"
"""Scheme, name and port, as services/proxy takes them."""
TRIES: Final = 12
"""With two replicas, one of 4,096 callers meets the standby each time."""
WITHIN: Final = 8.0
"""Seconds for each."""
TOKEN_SECONDS: Final = 600
"""The shortest life that the API server gives a token."""


class Controller:
    """`unavailable`: why it is not asked any more; said once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.unavailable = ""

    def answer(self, question: Question) -> Document | None:
        """None where it does not answer. Raises NotFound for what is not there, and Forbidden for what the
        caller may not see."""
        if self.unavailable:
            return None
        try:
            authorization = self._authorization
        except ApiError as error:
            return self._gives_up(f"the kubeconfig has no token to ask it with, and {_no_token(error)}")
        path = SERVICES.path(namespace=NAMESPACE, name=SERVICE, subresource="proxy") + path_of(question)
        why = ""
        with progress("asking the controller", line=False):
            for _ in range(TRIES):
                try:
                    found = self._client.read(path, headers={TOKEN_HEADER: authorization}, within=WITHIN)
                    return dict(found[question.subject])
                except ApiError as error:
                    if error.message == not_there(question) or error.reason == NOT_ALLOWED:
                        raise
                    why = str(error)
                    if error.reason != NOT_LEADING:
                        break
        return self._gives_up(why)

    @cached_property
    def _authorization(self) -> str:
        """As TOKEN_HEADER takes it. Raises ApiError."""
        own = self._client.authorization
        if own:
            return own
        spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {},
            "spec": spec,
        }
        found = self._client.create(
            SERVICE_ACCOUNTS, body, namespace=NAMESPACE, name=ACCOUNT, subresource="token"
        )
        return f"Explain {objects.status_of(found)['token']}"

    def _gives_up(self, why: str) -> Document | None:
        self.unavailable = why
        say(f"koordra: the controller did not answer ({why}); the cluster is read instead", err=True)
        return None


def _no_token(error: ApiError) -> str:
    """Why there is none of the ServiceAccount's, and what to do."""
    account = f"ServiceAccount {NAMESPACE}/{ACCOUNT}"
    if isinstance(error, NotFound):
        return f"there is no {account} to get one of; apply deploy/kustomize/webhook of this version"
    if isinstance(error, Forbidden):
        return (
            f"you may not create one of {account}; have the Role koordra-explain-all bound to you, or use a "
            "kubeconfig with a token"
        )
    return str(error)
