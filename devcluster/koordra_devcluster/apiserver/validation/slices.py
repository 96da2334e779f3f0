"""ResourceSlices: who may use the devices, attributes, capacity with its request policy, counters, taints.

One slice holds devices or shared counters, never both. 128 devices, 64 when any of them has taints or
consumes counters. Attributes and capacities of a device together: 32. Counter sets: 8 a slice, 32 counters
each; a device consumes from 2 sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from koordra import quantity
from koordra.api.objects import Object
from koordra.errors import InvalidQuantity
from koordra.kube.validation import names
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.validation import forms, nodes, taints

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS: Final = 64
MAX_ATTRIBUTES_AND_CAPACITIES: Final = 32
MAX_COUNTER_SETS: Final = 8
MAX_COUNTERS: Final = 32
MAX_CONSUMED_SETS: Final = 2
MAX_TAINTS: Final = 16
MAX_BINDING_CONDITIONS: Final = 4
MAX_VALID_VALUES: Final = 10
MAX_VALUE: Final = 64
NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def resource_slice(errors: FieldErrors, obj: Object) -> None:
    spec = obj.get("spec") or {}
    names.driver(errors, "spec.driver", spec.get("driver"))
    pool = spec.get("pool") or {}
    forms.pool(errors, "spec.pool.name", pool.get("name"))
    if pool.get("resourceSliceCount", 0) <= 0:
        errors.invalid(
            "spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero"
        )
    if pool.get("generation", 0) < 0:
        errors.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")
    _node_choice(errors, "spec", spec, NODE_FIELDS)
    devices, counters = spec.get("devices") or (), spec.get("sharedCounters") or ()
    if devices and counters:
        errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    _counter_sets(errors, counters)
    _devices(errors, devices, per_device=spec.get("perDeviceNodeSelection") is True)


def resource_slice_update(errors: FieldErrors, new: Object, old: Object) -> None:
    """Driver, pool name and node of a slice never change."""
    resource_slice(errors, new)
    now, before = new.get("spec") or {}, old.get("spec") or {}
    for path, value, earlier in (
        ("spec.driver", now.get("driver"), before.get("driver")),
        ("spec.pool.name", (now.get("pool") or {}).get("name"), (before.get("pool") or {}).get("name")),
        ("spec.nodeName", now.get("nodeName"), before.get("nodeName")),
    ):
        if value != earlier:
            errors.invalid(path, value, "field is immutable")


def _node_choice(errors: FieldErrors, path: str, spec: Object, fields: Sequence[str]) -> None:
    given = [field for field in fields if spec.get(field) is not None]
    listed = ", ".join(f"`{field}`" for field in fields)
    for field in ("allNodes", "perDeviceNodeSelection"):
        if field in given and spec[field] is not True:
            errors.invalid(f"{path}.{field}", spec[field], "must be either unset or set to true")
    if not given:
        errors.required(path, f"exactly one of {listed} is required")
    elif len(given) > 1:
        errors.invalid(
            path,
            "{" + ", ".join(given) + "}",
            f"exactly one of {listed} is required, but multiple fields are set",
        )
    if "nodeName" in given:
        names.subdomain(errors, f"{path}.nodeName", spec["nodeName"])
    if "nodeSelector" in given:
        nodes.node_selector(errors, f"{path}.nodeSelector", spec["nodeSelector"], exactly_one=True)


def _counter_sets(errors: FieldErrors, sets: Sequence[Object]) -> None:
    if len(sets) > MAX_COUNTER_SETS:
        errors.too_many("spec.sharedCounters", len(sets), MAX_COUNTER_SETS)
    seen: set[str] = set()
    for index, counter_set in enumerate(sets):
        here = f"spec.sharedCounters[{index}]"
        names.label(errors, f"{here}.name", counter_set.get("name"))
        if counter_set.get("name") in seen:
            errors.duplicate(f"{here}.name", counter_set.get("name"))
        seen.add(counter_set.get("name", ""))
        _counters(errors, f"{here}.counters", counter_set.get("counters") or {})


def _counters(errors: FieldErrors, path: str, counters: Object) -> None:
    if not counters:
        errors.required(path)
    elif len(counters) > MAX_COUNTERS:
        errors.too_many(path, len(counters), MAX_COUNTERS)
    for name, counter in counters.items():
        names.label(errors, f"{path}[{name}]", name)
        forms.amount(errors, f"{path}[{name}].value", counter.get("value", ""))


def _devices(errors: FieldErrors, devices: Sequence[Object], *, per_device: bool) -> None:
    costly = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    limit = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if costly else MAX_DEVICES
    if len(devices) > limit:
        errors.too_many("spec.devices", len(devices), limit)
    seen: set[str] = set()
    for index, device in enumerate(devices):
        here = f"spec.devices[{index}]"
        names.label(errors, f"{here}.name", device.get("name"))
        if device.get("name") in seen:
            errors.duplicate(f"{here}.name", device.get("name"))
        seen.add(device.get("name", ""))
        if per_device:
            _node_choice(errors, here, device, ("nodeName", "nodeSelector", "allNodes"))
        _device(errors, here, device)


def _device(errors: FieldErrors, path: str, device: Object) -> None:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > MAX_ATTRIBUTES_AND_CAPACITIES:
        errors.invalid(
            path,
            len(attributes) + len(capacity),
            f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}",
        )
    for name, attribute in attributes.items():
        names.attribute_name(errors, f"{path}.attributes", name)
        _attribute(errors, f"{path}.attributes[{name}]", attribute)
    shared = device.get("allowMultipleAllocations") is True
    for name, entry in capacity.items():
        names.attribute_name(errors, f"{path}.capacity", name)
        here = f"{path}.capacity[{name}]"
        forms.amount(errors, f"{here}.value", entry.get("value", ""))
        if entry.get("requestPolicy") is not None:
            if shared:
                _policy(errors, f"{here}.requestPolicy", entry["requestPolicy"], entry.get("value", "0"))
            else:
                errors.forbidden(f"{here}.requestPolicy", "allowMultipleAllocations must be true")
    _consumed(errors, f"{path}.consumesCounters", device.get("consumesCounters") or ())
    found = device.get("taints") or ()
    if len(found) > MAX_TAINTS:
        errors.too_many(f"{path}.taints", len(found), MAX_TAINTS)
    for index, one in enumerate(found):
        taints.taint(errors, f"{path}.taints[{index}]", one)
    for field in ("bindingConditions", "bindingFailureConditions"):
        conditions = device.get(field) or ()
        if len(conditions) > MAX_BINDING_CONDITIONS:
            errors.too_many(f"{path}.{field}", len(conditions), MAX_BINDING_CONDITIONS)
        for index, condition in enumerate(conditions):
            names.qualified_key(errors, f"{path}.{field}[{index}]", condition)


def _attribute(errors: FieldErrors, path: str, attribute: Object) -> None:
    given = [kind for kind in ("bool", "int", "string", "version") if attribute.get(kind) is not None]
    if not given:
        errors.required(path, "exactly one value must be specified")
        return
    if len(given) > 1:
        errors.invalid(path, attribute, "exactly one value must be specified")
    for kind in ("string", "version"):
        if len(str(attribute.get(kind, "")).encode()) > MAX_VALUE:
            errors.too_long(f"{path}.{kind}", MAX_VALUE)
    version = attribute.get("version")
    if version is not None and not forms.is_semver(version):
        errors.invalid(f"{path}.version", version, "must be a string compatible with semver.org spec 2.0.0")


def _consumed(errors: FieldErrors, path: str, entries: Sequence[Object]) -> None:
    if len(entries) > MAX_CONSUMED_SETS:
        errors.too_many(path, len(entries), MAX_CONSUMED_SETS)
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        names.label(errors, f"{path}[{index}].counterSet", entry.get("counterSet"))
        if entry.get("counterSet") in seen:
            errors.duplicate(f"{path}[{index}].counterSet", entry.get("counterSet"))
        seen.add(entry.get("counterSet", ""))
        _counters(errors, f"{path}[{index}].counters", entry.get("counters") or {})


def _policy(errors: FieldErrors, path: str, policy: Object, value: str) -> None:
    """default is required with validValues or validRange, and is one of the values they allow."""
    values, bounds, default = policy.get("validValues") or (), policy.get("validRange"), policy.get("default")
    if values and bounds:
        errors.invalid(
            path,
            policy,
            "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time",
        )
    if default is None:
        if values or bounds:
            errors.required(f"{path}.default")
        return
    try:
        capacity, amount = quantity.parse(value), quantity.parse(default)
        if amount > capacity:
            errors.invalid(f"{path}.default", default, f"default is larger than capacity value: {value}")
        if values:
            _valid_values(errors, path, values, default, capacity)
        if bounds:
            _valid_range(errors, path, bounds, default, value)
    except InvalidQuantity as error:
        errors.invalid(path, policy, error.problem)


def _valid_values(
    errors: FieldErrors, path: str, values: Sequence[str], default: str, capacity: Decimal
) -> None:
    if len(values) > MAX_VALID_VALUES:
        errors.too_many(f"{path}.validValues", len(values), MAX_VALID_VALUES)
    amounts = [quantity.parse(value) for value in values]
    for index in range(len(amounts)):
        here = f"{path}.validValues[{index}]"
        if index and amounts[index] == amounts[index - 1]:
            errors.duplicate(here, values[index])
        elif index and amounts[index] < amounts[index - 1]:
            errors.invalid(here, values[index], "values must be sorted in ascending order")
        if amounts[index] > capacity:
            errors.invalid(here, values[index], "option is larger than capacity value")
    if quantity.parse(default) not in amounts:
        errors.invalid(f"{path}.default", default, "default value is not in the valid values")


def _valid_range(errors: FieldErrors, path: str, bounds: Object, default: str, value: str) -> None:
    here = f"{path}.validRange"
    if bounds.get("min") is None:
        errors.required(f"{here}.min")
        return
    capacity, low, amount = quantity.parse(value), quantity.parse(bounds["min"]), quantity.parse(default)
    high = quantity.parse(bounds["max"]) if bounds.get("max") is not None else None
    if low > capacity:
        errors.invalid(f"{here}.min", bounds["min"], f"min is larger than capacity value: {value}")
    if amount < low:
        errors.invalid(f"{path}.default", default, f"default is less than min: {bounds['min']}")
    if high is not None:
        if high < low:
            errors.invalid(f"{here}.max", bounds["max"], f"max is less than min: {bounds['min']}")
        if high > capacity:
            errors.invalid(f"{here}.max", bounds["max"], f"max is larger than capacity value: {value}")
        if amount > high:
            errors.invalid(f"{path}.default", default, f"default is more than max: {bounds['max']}")
    if bounds.get("step") is None:
        return
    step = quantity.parse(bounds["step"])
    if step <= 0:
        errors.invalid(f"{here}.step", bounds["step"], "must be greater than zero")
        return
    if low + step > capacity:
        errors.invalid(
            f"{here}.step",
            bounds["step"],
            f"one step {bounds['step']} is larger than capacity value: {value}",
        )
    if high is not None and (high - low) % step != 0:
        errors.invalid(
            f"{here}.step", bounds["step"], "value is not a multiple of a given step from (max-min)"
        )
    if (amount - low) % step != 0:
        errors.invalid(
            f"{path}.default", default, "value is not a multiple of a given step from (default-min)"
        )
