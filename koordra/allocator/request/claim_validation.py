"""What the API server would have refused of a claim; manifests of a what-if never met it.

    names       requests, and subrequests of one request, have names of their own. Upstream's allocator does
                not mind, and its own table of cases has such claims: only claims for koordra's classes are
                held to it
    references  constraints and configuration name requests of the claim, or `request/subrequest` of its
                alternatives; what names nobody would be overlooked, and a scope that is overlooked is a
                promise broken

One rule is koordra's own: a claim says the compute of a request in percent (`capacity`) or in TFLOPS
(`tflops`), since one of the two would be overlooked. Memory in bytes beside `memoryPercent` bounds it. What
the class says is a default, which the request may override. Another: cores below the smallest share that can
be kept are refused, instead of rounded up as kube-scheduler would.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Final

from koordra.allocator.reasons import Cause, ClaimRefused, refusal
from koordra.allocator.request.classes import drivers_named, is_koordra
from koordra.api import names
from koordra.api.claims import Configuration, DeviceClass, ResourceClaim
from koordra.api.opaque.parameters import GpuConfig
from koordra.api.opaque.resize import LEAST_CORES
from koordra.errors import InvalidManifest, InvalidQuantity
from koordra.quantity import parse
from koordra.spelling import meant


def refuse_misnamed(claim: ResourceClaim, *, own: bool) -> None:
    """Raises ClaimRefused with object, field and remedy for references to nobody and, if `own`, names that
    are there twice.

    `own`: the claim asks for koordra's classes.
    """
    if own:
        _refuse_doubled(claim, "spec.devices.requests", [request.name for request in claim.requests])
    known = {request.name for request in claim.requests}
    for index, request in enumerate(claim.requests):
        if request.prioritized:
            entries = [entry.name for entry in request.alternatives]
            known.update(f"{request.name}/{entry}" for entry in entries)
            if own:
                _refuse_doubled(claim, f"spec.devices.requests[{index}].firstAvailable", entries)
    constraints = [
        (f"spec.devices.constraints[{at}]", one.requests) for at, one in enumerate(claim.constraints)
    ]
    for field, found in (*constraints, *((entry.where, entry.requests) for entry in claim.config)):
        for index, name in enumerate(found):
            if name not in known:
                alike = meant(name, known)
                every = ", ".join(sorted(known)) or "none"
                hint = f"did you mean {alike}?" if alike else f"name one of {every}"
                raise _refused(
                    claim, f"the claim has no request {name!r}", f"{field}.requests[{index}]", hint
                )


def refuse_foreign_driver(claim: ResourceClaim, asked: Sequence[tuple[DeviceClass, str]]) -> None:
    """Raises ClaimRefused where one of the classes names a driver other than koordra's. `asked`: each with
    the label of its request."""
    for device_class, label in asked:
        foreign = sorted(drivers_named(device_class) - {names.DRIVER})
        if foreign and not is_koordra(device_class):
            raise refusal(
                claim.key,
                Cause.FOREIGN_DRIVER,
                f"the claim mixes requests for {names.DRIVER} and for {foreign[0]};"
                " put the latter into a claim of its own",
                request=label,
            )


_LITTLE: Final = 1 << 20


def _amount(name: str, spelled: str, *, of: str) -> Decimal:
    """0 where it is an amount of something else, or none that can be read."""
    with suppress(InvalidQuantity):
        return parse(spelled) if name.rpartition("/")[2] == of else Decimal(0)
    return Decimal(0)


def memory_in_doubt(name: str, spelled: str) -> str:
    """A question about memory below a mebibyte, where a unit was forgotten; empty for other amounts."""
    amount = _amount(name, spelled, of=names.CAPACITY_MEMORY)
    if not 0 < amount < _LITTLE:
        return ""
    meant = f"; was {amount}Gi meant?" if amount == amount.to_integral_value() and amount < 1024 else ""
    return f"{spelled} is {amount} bytes of memory, which counts as 1Mi{meant}"


def cores_below_least(name: str, spelled: str) -> str:
    """Why so little of a card's time cannot be kept; empty for other amounts.

    Time is paced, not multiprocessors, so the least is one of every model: a launch waits 10 s at most
    (native/limiter/pace.c), which pays for kernels of 0.1 s at 1 percent, and of no more in whole at less.
    """
    amount = _amount(name, spelled, of=names.CAPACITY_CORES)
    if amount == 0 or amount >= LEAST_CORES:
        return ""
    return (
        f"{spelled} is below {LEAST_CORES}%, the smallest share of a GPU's time that can be kept, whatever its model: less would not "
        "pay for a kernel of 0.1 s within 10 s"
    )


def refuse_below_least(claim: ResourceClaim) -> None:
    """Raises ClaimRefused for a request of less of a card's time than can be kept."""
    for request in claim.requests:
        for alternative in request.alternatives:
            label = f"{request.name}/{alternative.name}" if request.prioritized else request.name
            for name, spelled in sorted(alternative.capacity_spelled.items()):
                if why := cores_below_least(name, spelled):
                    field = f"spec.devices.requests[{label}].capacity.requests[{name}]"
                    raise _refused(claim, why, field, LEAST_REMEDY, label)


LEAST_REMEDY: Final = (
    "ask for whole percent from 1 up, or leave cores out: then they are neither reserved nor limited"
)


def refuse_amounts_said_twice(claim: ResourceClaim, entry: Configuration, parameters: object) -> None:
    """Raises ClaimRefused where the entry's `tflops` are about a request for cores. Bytes of memory beside a
    `memoryPercent` are the most that it may come to (devices/capacity)."""
    if not isinstance(parameters, GpuConfig) or parameters.tflops is None:
        return
    for request in claim.requests:
        for alternative in request.alternatives:
            label = f"{request.name}/{alternative.name}" if request.prioritized else request.name
            meant = not entry.requests or {request.name, label} & set(entry.requests)
            capacities = {name.rpartition("/")[2] for name in alternative.capacity or {}}
            if meant and names.CAPACITY_CORES in capacities:
                problem = f"request {label} asks for {names.CAPACITY_CORES} in capacity.requests too"
                field = f"{entry.where}.opaque.parameters.tflops"
                raise _refused(claim, problem, field, "keep one of the two", label)


def _refuse_doubled(claim: ResourceClaim, field: str, found: Sequence[str]) -> None:
    for index, name in enumerate(found):
        if name in found[:index]:
            problem = f"{name!r} is the name of another one"
            raise _refused(claim, problem, f"{field}[{index}].name", "give each a name of its own")


def _refused(
    claim: ResourceClaim, problem: str, field: str, remedy: str, request: str | None = None
) -> ClaimRefused:
    error = InvalidManifest(problem, object=str(claim), field=field, remedy=remedy)
    return refusal(claim.key, Cause.CONSTRAINT_VIOLATED, str(error), request=request)
