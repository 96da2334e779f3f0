"""The reconciler of ResourceClasses in the leader's term: watches of them, their parameters and DeviceClasses.

ConfigMaps are read one by one and not watched, since koordra may read those of its own namespace only: a change of one is seen
by the pass of every half minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES
from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES
from koordra.cel.selectors import admission_error
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.controller.resource_class.reconcile import ClassReconciler
from koordra.kube import KubeClient

GATHER: Final = 0.05


def start_classes(
    client: KubeClient,
    *,
    own_namespace: str,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    stop: threading.Event,
) -> threading.Thread:
    """Until `stop`, in a thread of its own."""
    reconciler = ClassReconciler(
        client,
        own_namespace=own_namespace,
        now=now,
        may_write=may_write,
        selector_problem=admission_error,
    )

    def reconcile(caches: Caches) -> None:
        reconciler.reconcile(
            caches[RESOURCE_CLASSES].objects(),
            {objects.name(obj): obj for obj in caches[DEVICE_CLASSES].objects()},
            {objects.key(obj): obj for obj in caches[CLASS_PARAMETERS].objects()},
        )

    return start_reconcile_loop(
        client,
        reconcile,
        name="resource-classes",
        kinds=(RESOURCE_CLASSES, CLASS_PARAMETERS, DEVICE_CLASSES),
        crds=(RESOURCE_CLASSES, CLASS_PARAMETERS),
        gather=GATHER,
        stop=stop,
    )
