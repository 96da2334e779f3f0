"""ResourceClaim status: what an allocator, the controllers and a driver may write, and when.

  allocation      write-once: immutable while set; may go to null only while nothing is reserved
  reservedFor     at most 256, unique uids, needs an allocation, and no new entry on a claim that is being
                  deleted
  devices         keys (driver, pool, device, shareID) must be in the allocation; data at most 10 KiB

Not checked, as in the real server: that devices exist, match, are free or have the capacity.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import classes, names
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.validation import forms, nodes

MAX_RESULTS: Final = 32
MAX_CONFIG: Final = 64
MAX_RESERVED: Final = 256
MAX_DATA: Final = 10 * 1024
MAX_IPS: Final = 16
MAX_CONDITIONS: Final = 8

DeviceKey = tuple[str, str, str, str]


def claim_status(errors: FieldErrors, new: Object, old: Object) -> None:
    """The status of `new`, given what `old` says. Both are whole claims."""
    status, before = new.get("status") or {}, old.get("status") or {}
    allocation, allocated = status.get("allocation"), before.get("allocation")
    if allocation is not None and allocated is None:
        _allocation(errors, allocation, new.get("spec") or {})
    elif allocation is not None and allocation != allocated:
        errors.invalid("status.allocation", allocation, "field is immutable")
    _reserved(errors, new, old)
    _devices(errors, status.get("devices") or (), allocation, before.get("devices") or ())


def _allocation(errors: FieldErrors, allocation: Object, spec: Object) -> None:
    path = "status.allocation"
    known = _request_names(spec)
    devices = allocation.get("devices") or {}
    results = devices.get("results") or ()
    if len(results) > MAX_RESULTS:
        errors.too_many(f"{path}.devices.results", len(results), MAX_RESULTS)
    seen: set[DeviceKey] = set()
    for index, result in enumerate(results):
        here = f"{path}.devices.results[{index}]"
        _result(errors, here, result, known)
        if _key(result) in seen and result.get("shareID"):
            errors.duplicate(here, "/".join(_key(result)))
        seen.add(_key(result))
    config = devices.get("config") or ()
    if len(config) > MAX_CONFIG:
        errors.too_many(f"{path}.devices.config", len(config), MAX_CONFIG)
    for index, configuration in enumerate(config):
        here = f"{path}.devices.config[{index}]"
        source = configuration.get("source")
        if not source:
            errors.required(f"{here}.source")
        elif source not in ("FromClass", "FromClaim"):
            errors.not_supported(f"{here}.source", source, ("FromClass", "FromClaim"))
        for position, reference in enumerate(configuration.get("requests") or ()):
            if reference not in known:
                errors.invalid(
                    f"{here}.requests[{position}]", reference, "must be the name of a request in the claim"
                )
        classes.opaque(errors, here, configuration)
    if allocation.get("nodeSelector") is not None:
        nodes.node_selector(errors, f"{path}.nodeSelector", allocation["nodeSelector"])


def _result(errors: FieldErrors, path: str, result: Object, known: set[str]) -> None:
    request = result.get("request", "")
    if request not in known:
        errors.invalid(
            f"{path}.request",
            request,
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        )
    names.driver(errors, f"{path}.driver", result.get("driver"))
    forms.pool(errors, f"{path}.pool", result.get("pool"))
    names.label(errors, f"{path}.device", result.get("device"))
    if result.get("shareID") and not forms.is_uuid(result["shareID"]):
        errors.invalid(
            f"{path}.shareID", result["shareID"], "error validating uid: must be a lower-case UUID"
        )
    for name, value in (result.get("consumedCapacity") or {}).items():
        names.attribute_name(errors, f"{path}.consumedCapacity", name)
        forms.amount(errors, f"{path}.consumedCapacity[{name}]", value)
    classes.tolerations(errors, f"{path}.tolerations", result.get("tolerations") or ())
    for field in ("bindingConditions", "bindingFailureConditions"):
        if len(result.get(field) or ()) > 4:
            errors.too_many(f"{path}.{field}", len(result[field]), 4)


def _request_names(spec: Object) -> set[str]:
    known: set[str] = set()
    for request in (spec.get("devices") or {}).get("requests") or ():
        alternatives = request.get("firstAvailable") or ()
        known.add(request.get("name", ""))
        known |= {f"{request.get('name')}/{alternative.get('name')}" for alternative in alternatives}
    return known


def _reserved(errors: FieldErrors, new: Object, old: Object) -> None:
    path = "status.reservedFor"
    status = new.get("status") or {}
    reserved = status.get("reservedFor") or ()
    before = {entry.get("uid") for entry in (old.get("status") or {}).get("reservedFor") or ()}
    if len(reserved) > MAX_RESERVED:
        errors.too_many(path, len(reserved), MAX_RESERVED)
    seen: set[str] = set()
    for index, entry in enumerate(reserved):
        here = f"{path}[{index}]"
        for field in ("resource", "name", "uid"):
            if not entry.get(field):
                errors.required(f"{here}.{field}")
        if entry.get("uid") in seen:
            errors.duplicate(f"{here}.uid", entry.get("uid"))
        seen.add(entry.get("uid", ""))
    if reserved and status.get("allocation") is None:
        errors.forbidden(path, "may not be specified when `allocated` is not set")
    if (new.get("metadata") or {}).get("deletionTimestamp") and seen - before:
        errors.forbidden(
            path, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        )


def _devices(
    errors: FieldErrors, devices: Sequence[Object], allocation: Object | None, before: Sequence[Object]
) -> None:
    allocated = {_key(result) for result in ((allocation or {}).get("devices") or {}).get("results") or ()}
    earlier = {_key(device): device for device in before}
    seen: set[DeviceKey] = set()
    for index, device in enumerate(devices):
        here, key = f"status.devices[{index}]", _key(device)
        names.driver(errors, f"{here}.driver", device.get("driver"))
        forms.pool(errors, f"{here}.pool", device.get("pool"))
        names.label(errors, f"{here}.device", device.get("device"))
        if key in seen:
            errors.duplicate(here, "/".join(part for part in key if part))
        seen.add(key)
        if key not in allocated and earlier.get(key) != device:
            errors.invalid(
                here, "/".join(part for part in key if part), "must be an allocated device in the claim"
            )
        _device(errors, here, device)


def _device(errors: FieldErrors, path: str, device: Object) -> None:
    if len(device.get("conditions") or ()) > MAX_CONDITIONS:
        errors.too_many(f"{path}.conditions", len(device["conditions"]), MAX_CONDITIONS)
    data = device.get("data")
    if data is not None and not isinstance(data, dict):
        errors.invalid(f"{path}.data", data, "must be a valid JSON object")
    elif (
        data is not None
        and len(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()) > MAX_DATA
    ):
        errors.too_long(f"{path}.data", MAX_DATA)
    network = device.get("networkData") or {}
    for field, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(field, "")) > limit:
            errors.too_long(f"{path}.networkData.{field}", limit)
    ips = network.get("ips") or ()
    if len(ips) > MAX_IPS:
        errors.too_many(f"{path}.networkData.ips", len(ips), MAX_IPS)
    for index, address in enumerate(ips):
        try:
            ipaddress.ip_interface(address)
            canonical = "/" in address
        except ValueError:
            canonical = False
        if not canonical:
            errors.invalid(
                f"{path}.networkData.ips[{index}]",
                address,
                "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
            )


def _key(entry: Object) -> DeviceKey:
    return (entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID", ""))
