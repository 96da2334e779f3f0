"""Where the API server is and how to be let in: the only importer of the `kubernetes` client library.

The library reads a kubeconfig file or the service account of the pod, and keeps TLS and tokens fresh. It is
slow to import, so that commands import this module only when they ask a cluster.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any, Final

from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection
from urllib3.util.ssl_ import create_urllib3_context

from koordra.errors import ApiUnreachable, InvalidManifest
from koordra.kube.client import KubeClient
from koordra.kube.request_limit import RequestLimit

_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A connection whose other end is gone without a word ends after a minute, as with client-go's pings. Silence
says nothing: a watch of objects that do not change is silent for as long as it lasts, without bookmarks too
where etcd reports no progress."""

DEFAULT_NAMESPACE: Final = "default"
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class _Connections(HTTPSConnectionPool):
    """Takes the authorities that Kubernetes' own clients take. From Python 3.13 on urllib3 asks for
    VERIFY_X509_STRICT besides, and refuses those of many clusters, which lack a key usage or an authority's
    key identifier."""

    def _new_conn(self) -> Any:
        self.conn_kw["ssl_context"] = create_urllib3_context(verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
        return super()._new_conn()


def new_client(
    kubeconfig: str | None = None,
    *,
    context: str | None = None,
    timeout: float = 15.0,
    user_agent: str = "koordra",
    limit: RequestLimit | None = None,
) -> KubeClient:
    """A client of the API server that a kubeconfig file names; None takes the pod's service account, or
    KUBECONFIG or ~/.kube/config outside a cluster. `context`: another than the file's current one. No
    `limit`: a person waits for each answer, and that is limit enough. Raises InvalidManifest."""
    configuration, pool = _configuration(kubeconfig, context)

    def credentials() -> dict[str, str]:
        try:
            return {each["key"]: each["value"] for each in configuration.auth_settings().values()}
        except config.ConfigException as error:
            raise ApiUnreachable(f"credentials cannot be renewed: {error}") from error

    return KubeClient(
        str(configuration.host), pool, credentials, timeout=timeout, user_agent=user_agent, limit=limit
    )


def namespace_of(kubeconfig: str | None = None, *, context: str | None = None) -> str:
    """The namespace that is meant where nobody names one: the pod's own, or the context's. Raises
    InvalidManifest."""
    try:
        if kubeconfig is None and context is None and _OWN_NAMESPACE.exists():
            return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
        chosen = next((one for one in contexts if one["name"] == context), current)
        return str((chosen.get("context") or {}).get("namespace") or DEFAULT_NAMESPACE)
    except Exception as error:
        raise _unusable(kubeconfig, error) from error


def _configuration(kubeconfig: str | None, context: str | None) -> tuple[Configuration, PoolManager]:
    configuration = Configuration()
    configuration.retries = False
    try:
        if kubeconfig is None and context is None:
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                config.load_kube_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
        pool = RESTClientObject(configuration).pool_manager
        pool.pool_classes_by_scheme = {**pool.pool_classes_by_scheme, "https": _Connections}
        pool.connection_pool_kw["socket_options"] = [*HTTPConnection.default_socket_options, *_KEEP_ALIVE]
        return configuration, pool
    except Exception as error:  # the library checks little: a file that is none ends in any type of error
        raise _unusable(kubeconfig, error) from error


def _unusable(kubeconfig: str | None, error: Exception) -> InvalidManifest:
    return InvalidManifest(
        f"no usable Kubernetes configuration: {error}",
        object=kubeconfig or "kubeconfig",
        remedy="name a kubeconfig with --kubeconfig or KUBECONFIG",
    )
