"""What a pod requests and what a node still has: cpu, memory, extended resources, number of pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from koordra import quantity
from koordra.api.objects import Object, pod_is_finished, spec_of, status_of

Amounts = dict[str, Decimal]


def of_pod(pod: Object) -> Amounts:
    """Containers and sidecars add up; init containers run before them, one at a time; overhead comes on
    top."""
    running: Amounts = {}
    for container in spec_of(pod).get("containers") or ():
        _add(running, _container(container))
    starting: Amounts = {}
    for container in spec_of(pod).get("initContainers") or ():
        amounts = _container(container)
        if container.get("restartPolicy") == "Always":
            _add(running, amounts)
        else:
            starting = {
                name: max(starting.get(name, Decimal(0)), amounts.get(name, Decimal(0)))
                for name in starting | amounts
            }
    total = {
        name: max(running.get(name, Decimal(0)), starting.get(name, Decimal(0)))
        for name in running | starting
    }
    _add(total, _parsed(spec_of(pod).get("overhead") or {}))
    return total


def of_node(node: Object) -> Amounts:
    """Allocatable; `pods` among them."""
    found = status_of(node)
    return _parsed(found.get("allocatable") or found.get("capacity") or {})


def used(pods: Iterable[Object]) -> Amounts:
    """What the pods of one node take, `pods` among it."""
    total: Amounts = {"pods": Decimal(0)}
    for pod in pods:
        if not pod_is_finished(pod):
            _add(total, of_pod(pod))
            total["pods"] += 1
    return total


def shortfalls(wanted: Amounts, available: Amounts, taken: Amounts) -> list[str]:
    """Why a pod does not fit, in kube-scheduler's words; empty when it does."""
    reasons = []
    if taken.get("pods", Decimal(0)) + 1 > available.get("pods", Decimal(110)):
        reasons.append("Too many pods")
    for name in sorted(wanted):
        free = available.get(name, Decimal(0)) - taken.get(name, Decimal(0))
        if wanted[name] > 0 and wanted[name] > free:
            reasons.append(f"Insufficient {name}")
    return reasons


def _container(container: Object) -> Amounts:
    return _parsed((container.get("resources") or {}).get("requests") or {})


def _parsed(resources: Mapping[str, str]) -> Amounts:
    return {name: quantity.parse(value) for name, value in resources.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount
