"""The node's IMEX domain, between the kubelet plugin and the process that runs NVIDIA's daemon:

    imex/domain.json     plugin: the domain that the node is in, and its nodes; no file, no domain
    imex/status.json     `koordra imex`: how far the daemon is
    imex/imexd.cfg, nodes.cfg, hosts, run/     of the daemon (koordra/imex/config_files.py)
    imex.lock            held by the one `koordra imex` of the node

    {"schema": "koordra.io/imex-domain/v1", "domain": "gang default/train", "clique": "<uuid>.1", "own": 3,
     "nodes": [{"number": 0, "name": "tray-07", "address": "10.0.0.7"}]}
    {"schema": "koordra.io/imex-status/v1", "domain": "...", "clique": "...", "ready": false,
     "reached": [0, 3], "detail": "nvidia-imex-ctl says INITIALIZING"}

`own` is the node's number. `reached` are the numbers of the nodes whose daemons accept connections.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api.opaque.imex import ImexDomain
from koordra.errors import NodeError
from koordra.node_state.locks import opened, try_lock, wait_for_lock
from koordra.node_state.strict_json import (
    BOOLEAN,
    INTEGER,
    STRING,
    TEXT,
    document,
    listed,
    plain,
    record,
)

FOLDER: Final = "imex"
LOCK: Final = "imex.lock"
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True, order=True)
class DomainNode:
    """`address` is an IP address."""

    number: int
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class NodeDomain:
    domain: str
    clique: str
    own: int
    nodes: tuple[DomainNode, ...]

    @property
    def of(self) -> ImexDomain:
        return ImexDomain(self.domain, self.clique)


@dataclass(frozen=True, slots=True)
class DomainStatus:
    domain: str
    clique: str
    ready: bool
    reached: tuple[int, ...] = ()
    detail: str = ""

    @property
    def of(self) -> ImexDomain:
        return ImexDomain(self.domain, self.clique)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_NODE: Final = record(
    DomainNode,
    {"number": INTEGER, "name": TEXT, "address": plain(str, _is_address, "{!r} is no IP address")},
)
encode_domain, decode_domain = document(
    NodeDomain,
    "koordra.io/imex-domain/v1",
    {"domain": TEXT, "clique": TEXT, "own": INTEGER, "nodes": listed(_NODE)},
)
encode_status, decode_status = document(
    DomainStatus,
    "koordra.io/imex-status/v1",
    {"domain": TEXT, "clique": TEXT, "ready": BOOLEAN, "reached": listed(INTEGER), "detail": STRING},
)

IMEX_DOMAIN: Final = record(ImexDomain, {"domain": TEXT, "clique": TEXT})
"""As a claim's record has it."""


@dataclass(frozen=True, slots=True)
class ImexFolder:
    """Where the files are below the state directory."""

    state: Path

    @property
    def path(self) -> Path:
        return self.state / FOLDER

    @property
    def domain(self) -> Path:
        return self.path / "domain.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        return self.state / LOCK


@contextmanager
def supervising(folder: ImexFolder, stop: threading.Event) -> Iterator[bool]:
    """Be the one `koordra imex` of the node for the time of the block; False when `stop` came first. Raises
    NodeError."""
    with opened(folder.lock, NodeError) as descriptor:
        yield wait_for_lock(descriptor, stop, retry=_RETRY_S, busy=lambda: None)


def is_supervised(folder: ImexFolder) -> bool:
    """Whether a `koordra imex` runs on the node. Raises NodeError."""
    with opened(folder.lock, NodeError) as descriptor:
        return not try_lock(descriptor)
