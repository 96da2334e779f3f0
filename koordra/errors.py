"""Every error koordra raises on purpose, on one screen.

    KoordraError                      exit 1
    ├── InvalidInput                  exit 2   something a person wrote cannot be meant: object, field, remedy
    │   ├── InvalidQuantity
    │   ├── InvalidManifest                    a YAML/JSON document or Kubernetes object
    │   ├── InvalidParameters                  opaque parameters of koordra.io/v1alpha1
    │   └── SelectorError                      a CEL expression that cannot be compiled or evaluated
    ├── PlanError                     exit 2   input that upstream's allocator answers with an error
    │   └── ClaimRefused                       (allocator/) one claim's share of it, with its reason
    ├── DiscoveryError                exit 3   the machine cannot be read
    ├── NodeError                     exit 3   the node side cannot do what was promised
    │   ├── PrepareError                       one claim cannot be prepared; others can
    │   ├── CheckpointError                    state on disk is unreadable or cannot be written
    │   ├── CDIError                           a CDI file is invalid or cannot be written
    │   └── NRIError                           the runtime connection
    │       ├── ProtocolError                  bytes that are not mux, ttrpc or NRI
    │       └── RemoteError                    a ttrpc call was answered with a status, by the peer or by us
    ├── ApiError                      exit 4   the Kubernetes API said no (code, reason, message)
    │   ├── NotFound   404, and 403 where the namespace is being deleted
    │   ├── Conflict   409  (also AlreadyExists)
    │   ├── Gone       410  the watch has to be listed again
    │   ├── Invalid    422
    │   ├── Forbidden  401, 403
    │   └── ApiUnreachable                     nobody answered, or the answer broke off; trying again helps
    ├── StoreUnavailable              exit 4   the store of profiles does not answer
    └── ClusterError                  exit 5   the development cluster or the demo did not come up

Foreign errors (`grpc.RpcError`, `urllib3` exceptions, `pynvml.NVMLError`, `OSError` from /sys) are translated
at the module that touches the foreign thing and never travel inward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from koordra.inert import inert


class KoordraError(Exception):
    """Root of the tree; `exit_code` is what the command line ends with. Its text is inert."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return inert(super().__str__())


class InvalidInput(KoordraError):
    """Something a person or another program wrote cannot be meant.

    The text always has the same three parts, so that it can be acted on: which object, which field, and what
    to do.
    """

    exit_code = 2

    def __init__(self, problem: str, *, object: str = "", field: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.object = object
        self.field = field
        self.remedy = remedy
        where = ": ".join(part for part in (object, field) if part)
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}; {remedy}" if remedy else text)


class InvalidQuantity(InvalidInput):
    """A Kubernetes quantity that the API server would refuse."""


class InvalidManifest(InvalidInput):
    """A manifest or API object whose shape is wrong."""


class InvalidParameters(InvalidInput):
    """Opaque parameters of koordra that are misspelt, out of range or contradict each other."""


class SelectorError(InvalidInput):
    """A CEL selector that does not compile, or failed on a device as it would in Kubernetes."""


class SelectorsCostTooMuch(KoordraError):
    """Selectors have cost what one question may cost; the same question goes on where this one ended."""


class PlanError(KoordraError):
    """Input that upstream's allocator answers with an error rather than with "does not fit"."""

    exit_code = 2


class DiscoveryError(KoordraError):
    """The machine cannot be read at all (a single unreadable device is a reported problem, not an error)."""

    exit_code = 3


class NodeError(KoordraError):
    """The node side cannot keep a promise; the kubelet or the runtime gets the text."""

    exit_code = 3


class PrepareError(NodeError):
    """One claim cannot be prepared or unprepared."""


class CheckpointError(NodeError):
    """The plugin's state on disk is unreadable or cannot be written; Prepare fails closed."""


class CDIError(NodeError):
    """A CDI spec file breaks the rules of the CDI loader, or cannot be written."""


class NRIError(NodeError):
    """The connection to the container runtime's NRI socket."""


class ProtocolError(NRIError):
    """Bytes that are not what mux, ttrpc or NRI allow; the connection cannot go on."""


class RemoteError(NRIError):
    """A ttrpc call answered with a status other than OK (`code` is a gRPC code): by the peer, or by the
    hook's refusal."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"status {code}: {message}")


class ApiError(KoordraError):
    """The Kubernetes API answered with a Status."""

    exit_code = 4

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(f"{message} ({code} {reason})".replace(" (0 )", ""))


class NotFound(ApiError):
    """404, or a 403 because the namespace is being deleted: nothing will be made there."""


class Conflict(ApiError):
    """409: somebody else wrote first, or the object exists already (`reason` tells which)."""


class Gone(ApiError):
    """410: the resourceVersion is too old to watch from."""


class Invalid(ApiError):
    """400 or 422: the API server refused the object itself."""


class Forbidden(ApiError):
    """401 or 403: RBAC, or the credentials."""


class ApiUnreachable(ApiError):
    """No answer, a broken answer, 429 or 5xx: trying again helps."""


class StoreUnavailable(KoordraError):
    """The store of profiles does not answer, or not as one does; trying again may help."""

    exit_code = 4


class ClusterError(KoordraError):
    """The development cluster or the demo did not come up, or ended early."""

    exit_code = 5


@contextmanager
def one_by_one() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Work on several things, each in a context of the kind that is given: an error with one does not stop
    the others, and the first is raised at the end."""
    failed: list[KoordraError] = []

    @contextmanager
    def one() -> Iterator[None]:
        try:
            yield
        except KoordraError as error:
            failed.append(error)

    yield one
    if failed:
        raise failed[0]
