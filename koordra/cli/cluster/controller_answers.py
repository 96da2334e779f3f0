"""How `koordra explain` asks the cluster's controller: through the API server's proxy of its Service, with
the caller's own token.

The API server takes the Authorization of a request that it forwards away, so the token goes in a header of
koordra's. It picks one of the Service's replicas for each request; those that do not lead say so and are
passed over by asking again. Where nobody answers the cluster is read instead, and that is said.
"""

from __future__ import annotations

from typing import Final

from koordra.api.kinds import SERVICES
from koordra.cli.options import say
from koordra.cli.output import Document
from koordra.controller.explain.question import (
    NOT_ALLOWED,
    NOT_LEADING,
    TOKEN_HEADER,
    Question,
    not_there,
    path_of,
)
from koordra.errors import ApiError
from koordra.kube.client import KubeClient

NAMESPACE: Final = "koordra-system"
SERVICE: Final = "https:koordra-webhook:webhook"
"""Scheme, name and port, as services/proxy takes them."""
TRIES: Final = 12
"""With two replicas, one of 4,096 callers meets the standby each time."""
WITHIN: Final = 8.0
"""Seconds for each."""


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
        token = self._client.authorization
        if not token:
            return self._gives_up("the kubeconfig has a client certificate and no token to ask it with")
        path = SERVICES.path(namespace=NAMESPACE, name=SERVICE, subresource="proxy") + path_of(question)
        why = ""
        for _ in range(TRIES):
            try:
                found = self._client.read(path, headers={TOKEN_HEADER: token}, within=WITHIN)
                return dict(found[question.subject])
            except ApiError as error:
                if error.message == not_there(question) or error.reason == NOT_ALLOWED:
                    raise
                why = str(error)
                if error.reason != NOT_LEADING:
                    break
        return self._gives_up(why)

    def _gives_up(self, why: str) -> Document | None:
        self.unavailable = why
        say(f"koordra: the controller did not answer ({why}); the cluster is read instead", err=True)
        return None
