"""Volcano's Job: a PodGroup and the pods of its tasks, named and annotated as vc-controller does it; plugins
svc and env."""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Object, name, namespace, spec_of, uid
from koordra_devcluster.controllers.operators.definitions import VOLCANO_POD_GROUPS
from koordra_devcluster.controllers.operators.making import Making, numbered_pod


def sync(making: Making, job: Object) -> None:
    """Makes what is missing of the PodGroup, the Service and the pods."""
    spec = spec_of(job)
    tasks = spec["tasks"]
    group = f"{name(job)}-{uid(job)}"
    number = sum(int(task.get("replicas", 1)) for task in tasks)
    wanted = {"minMember": spec.get("minAvailable", number), "queue": spec.get("queue", "default")}
    making.make(VOLCANO_POD_GROUPS, job, {"metadata": {"name": group}, "spec": wanted})
    plugins = spec.get("plugins") or {}
    own = {"volcano.sh/job-name": name(job), "volcano.sh/job-namespace": namespace(job)}
    if "svc" in plugins:
        making.service(job, name(job), own)
    for place, task in enumerate(tasks):
        called = str(task.get("name") or f"default{place}")
        for index in range(int(task.get("replicas", 1))):
            told = {"volcano.sh/task-spec": called, "volcano.sh/task-index": str(index)}
            indexes = {"VC_TASK_INDEX": str(index), "VK_TASK_INDEX": str(index)}
            pod = numbered_pod(
                task["template"],
                job,
                f"{name(job)}-{called}-{index}",
                labels={**own, **told, "volcano.sh/queue-name": str(wanted["queue"])},
                annotations={**own, **told, "scheduling.k8s.io/group-name": group},
                subdomain=name(job) if "svc" in plugins else "",
                env=indexes.items() if "env" in plugins else (),
                schedulerName=str(spec.get("schedulerName") or "volcano"),
            )
            making.make(kinds.PODS, job, pod)
