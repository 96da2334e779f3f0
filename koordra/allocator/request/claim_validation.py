"""What the API server would have refused of a claim; manifests of a what-if never met it.

    names       requests, and subrequests of one request, have names of their own. Upstream's allocator does not mind, and its own
                table of cases has such claims: only claims for koordra's classes are held to it
    references  constraints and configuration name requests of the claim, or `request/subrequest` of its alternatives;
                what names nobody would be overlooked, and a scope that is overlooked is a promise broken

One rule is koordra's own: a claim says the memory of a request in bytes (`capacity`) or in percent (`memoryPercent`), since one
of the two would be overlooked. What the class says in percent is a default, which the request may override.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from koordra.allocator.reasons import Cause, refusal
from koordra.api import names
from koordra.api.claims import Configuration, DeviceRequest, ResourceClaim
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import InvalidManifest


def refuse_misnamed(claim: ResourceClaim, *, own: bool) -> None:
    """Raises ClaimRefused with object, field and remedy for references to nobody and, if `own`, names that are there twice.

    `own`: the claim asks for koordra's classes.
    """
    for problem in (*(_doubled(claim) if own else ()), *_unknown(claim)):
        raise refusal(claim.key, Cause.CONSTRAINT_VIOLATED, str(problem))


def refuse_memory_said_twice(
    claim: ResourceClaim, entry: Configuration, parameters: object, requests: Iterable[DeviceRequest]
) -> None:
    """Raises ClaimRefused where the entry's `memoryPercent` is about a request that asks for bytes of memory."""
    if not isinstance(parameters, GpuConfig) or parameters.memory_percent is None:
        return
    for request in requests:
        for alternative in request.alternatives:
            label = f"{request.name}/{alternative.name}" if request.prioritized else request.name
            meant = not entry.requests or {request.name, label} & set(entry.requests)
            capacities = {name.rpartition("/")[2] for name in alternative.capacity or {}}
            if meant and names.CAPACITY_MEMORY in capacities:
                error = InvalidManifest(
                    f"request {label} asks for memory in capacity.requests too",
                    object=str(claim),
                    field=f"{entry.where}.opaque.parameters.memoryPercent",
                    remedy="keep one of the two",
                )
                raise refusal(claim.key, Cause.CONSTRAINT_VIOLATED, str(error), request=label)


def _doubled(claim: ResourceClaim) -> Iterator[InvalidManifest]:
    places = {"spec.devices.requests": [request.name for request in claim.requests]} | {
        f"spec.devices.requests[{index}].firstAvailable": [entry.name for entry in request.alternatives]
        for index, request in enumerate(claim.requests)
        if request.prioritized
    }
    for field, found in places.items():
        for index, name in enumerate(found):
            if name in found[:index]:
                yield InvalidManifest(
                    f"{name!r} is the name of another one",
                    object=str(claim),
                    field=f"{field}[{index}].name",
                    remedy="give each a name of its own",
                )


def _unknown(claim: ResourceClaim) -> Iterator[InvalidManifest]:
    known = {request.name for request in claim.requests}
    for request in claim.requests:
        known.update(f"{request.name}/{entry.name}" for entry in request.alternatives if request.prioritized)
    places = {f"spec.devices.constraints[{at}]": one.requests for at, one in enumerate(claim.constraints)}
    for field, found in (*places.items(), *((entry.where, entry.requests) for entry in claim.config)):
        for index, name in enumerate(found):
            if name not in known:
                alike = difflib.get_close_matches(name, known, n=1)
                every = ", ".join(sorted(known)) or "none"
                hint = f"did you mean {alike[0]}?" if alike else f"name one of {every}"
                yield InvalidManifest(
                    f"the claim has no request {name!r}",
                    object=str(claim),
                    field=f"{field}.requests[{index}]",
                    remedy=hint,
                )
