"""JobSet: a Job for each replica of each replicated job, under one headless Service (jobset.x-k8s.io, as
jobset-controller names and labels them)."""

from __future__ import annotations

import copy
import hashlib

from koordra.api.objects import Object, annotations_of, labels_of, metadata, name, namespace, spec_of
from koordra_devcluster.apiserver.resources import JOBS
from koordra_devcluster.controllers.operators.making import Making

_PREFIX = "jobset.sigs.k8s.io/"


def sync(making: Making, job_set: Object) -> None:
    """Makes what is missing of the set's Service and Jobs."""
    spec = spec_of(job_set)
    network = spec.get("network") or {}
    subdomain = str(network.get("subdomain") or name(job_set))
    named = network.get("enableDNSHostnames", True)
    if named:
        early = bool(network.get("publishNotReadyAddresses", True))
        making.service(job_set, subdomain, {f"{_PREFIX}jobset-name": name(job_set)}, early=early)
    number = 0
    for replicated in spec["replicatedJobs"]:
        for index in range(int(replicated.get("replicas", 1))):
            labels = {**_labels(job_set, replicated, index), f"{_PREFIX}job-global-index": str(number)}
            job = _job(replicated["template"], f"{name(job_set)}-{replicated['name']}-{index}", labels)
            if named:
                job["spec"]["template"]["spec"].setdefault("subdomain", subdomain)
            if "suspend" in spec:
                job["spec"]["suspend"] = spec["suspend"]
            making.make(JOBS, job_set, job)
            number += 1


def _labels(job_set: Object, replicated: Object, index: int) -> dict[str, str]:
    called = f"{namespace(job_set)}/{name(job_set)}-{replicated['name']}-{index}"
    return {
        f"{_PREFIX}jobset-name": name(job_set),
        f"{_PREFIX}jobset-uid": str(metadata(job_set)["uid"]),
        f"{_PREFIX}replicatedjob-name": str(replicated["name"]),
        f"{_PREFIX}replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{_PREFIX}job-index": str(index),
        f"{_PREFIX}job-key": hashlib.sha1(called.encode(), usedforsecurity=False).hexdigest(),
        f"{_PREFIX}restart-attempt": "0",
    }


def _job(template: Object, job_name: str, labels: dict[str, str]) -> Object:
    """The set's labels and annotations are on the Job and on its pods."""
    spec = copy.deepcopy(dict(spec_of(template)))
    pods = dict(spec.get("template") or {})
    own = dict(metadata(pods))
    own["labels"] = {**(own.get("labels") or {}), **labels}
    own["annotations"] = {**(own.get("annotations") or {}), **labels}
    spec["template"] = {**pods, "metadata": own}
    head = {
        "name": job_name,
        "labels": {**labels_of(template), **labels},
        "annotations": {**annotations_of(template), **labels},
    }
    return {"metadata": head, "spec": spec}
