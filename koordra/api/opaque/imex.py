"""IMEX channels: what a class says of them, and the controller's word in an allocation.

`ImexConfig`, koordra.io/v1alpha1, is the operator's in a DeviceClass.

`ImexDomain` says which domain the claim's channels are in. The controller writes it into
`status.allocation.devices.config` with the allocation; the node makes the domain of it. It is no parameter
that a claim or class may carry (`parameters.decode` does not know it): who names a domain shares memory with
all that are in it.

    domain   the gang whose members share memory, or the claim of a pod that is in none, for people and to
             tell domains apart
    clique   the part of the NVLink fabric that the node is in: a gang in several cliques has a domain in each
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeGuard

from koordra.api import names
from koordra.api.allocation import FROM_CLAIM
from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader
from koordra.errors import InvalidParameters

API_VERSION: Final = "koordra.io/v1alpha1"
KIND: Final = "ImexDomain"
MOST_NODES: Final = 18
"""Of a domain: the trays of an NVL72 rack. NVIDIA's ComputeDomain has the same bound."""
_LONGEST: Final = 600
"""Characters: two names of 253, and what stands around them."""


class ImexChannels(StrEnum):
    ONE = "One"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class ImexConfig:
    """Which of the node's IMEX channels a container gets."""

    channels: ImexChannels | None = None
    """`One`, which is channel 0 and what comes of nothing, or `All` that the driver has."""


@dataclass(frozen=True, slots=True, order=True)
class ImexDomain:
    domain: str
    clique: str

    @property
    def object_name(self) -> str:
        """Of the ConfigMap that says which nodes are in it."""
        digest = hashlib.sha256(f"{self.domain}\n{self.clique}".encode()).hexdigest()
        return f"koordra-imex-{digest[:20]}"

    def to_dict(self) -> Object:
        return {"apiVersion": API_VERSION, "kind": KIND, "domain": self.domain, "clique": self.clique}

    def entry(self) -> Object:
        """As an entry of `status.allocation.devices.config`."""
        return {"source": FROM_CLAIM, "opaque": {"driver": names.DRIVER, "parameters": self.to_dict()}}


def is_imex_domain(parameters: object) -> TypeGuard[Fields]:
    return isinstance(parameters, Mapping) and parameters.get("kind") == KIND


def decode_imex_domain(parameters: Fields, *, object: str, field: str) -> ImexDomain:
    """Raises InvalidParameters for anything that `to_dict` does not write."""
    read = Reader(parameters, object=object, field=field, error=InvalidParameters)
    if read.data.get("apiVersion") != API_VERSION:
        raise read.wrong(f"is not {API_VERSION}", at="apiVersion")
    read.only("apiVersion", "kind", "domain", "clique", problem=f"{KIND} has no such field")
    domain = ImexDomain(read.text("domain"), read.text("clique"))
    for name, text in (("domain", domain.domain), ("clique", domain.clique)):
        if not text or not text.isprintable() or len(text) > _LONGEST:
            raise read.wrong("is not a name", at=name)
    return domain


def domain_of(allocation: Fields | None) -> ImexDomain | None:
    """The domain that an allocation names; None where it names none, or one that cannot be read."""
    devices = (allocation or {}).get("devices") or {}
    for entry in devices.get("config") or ():
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") == names.DRIVER and is_imex_domain(opaque.get("parameters")):
            try:
                return decode_imex_domain(opaque["parameters"], object="allocation", field="parameters")
            except InvalidParameters:
                return None
    return None
