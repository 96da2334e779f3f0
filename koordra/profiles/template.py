"""Which pods run the same: a hash of what a pod runs, as a ReplicaSet's pod-template-hash is one of all of
its template. So a job is known when it comes again, under another name.

In it are its containers' images, programs, arguments and variables. Not in it is what they ask for: a job
that asks for less the next time is the same job. Nor is what differs between the pods of one job, or two runs
of it: names, ranks, addresses of others, and whatever the API server, schedulers and kubelet fill in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Fields
from koordra.api.pods import CONTAINER_LISTS

LENGTH: Final = 16
"""Hexadecimal digits. Only jobs of one namespace are compared, whose users write all of them."""
VARYING: Final = re.compile(
    r"(PET_)?(NODE_|GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|(PET_)?MASTER_(ADDR|PORT)|PET_(NNODES|RDZV_(ENDPOINT|ID))"
    r"|TF_CONFIG|JOB_COMPLETION_INDEX|V[CK]_TASK_INDEX|HOSTNAME|HOST|NODE_NAME|POD_(NAME|IP|UID)|RAY_ADDRESS|FQ_RAY_IP"
    r"|(JOBSET|GROVE|LWS)_\w+|\w+_(HOSTS|ENDPOINTS?|INDEX)"
)
"""Variables that tell a pod who it is and where the others are: of torchrun, Horovod, TensorFlow, Volcano,
Ray, JobSet, Grove, LeaderWorkerSet."""


def template_of(pod: Fields) -> str:
    """Of a pod, or a pod template; users may have written anything."""
    meta, spec = objects.metadata(pod), objects.spec_of(pod)
    names = {str(one.get("name")) for one in objects.mappings(meta.get("ownerReferences"))}
    names = {name for name in {*names, objects.name(pod)} if name}
    found = {
        group: [_runs(container, names) for container in objects.mappings(spec.get(group))]
        for group in CONTAINER_LISTS
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:LENGTH]


def _runs(container: Fields, names: Iterable[str]) -> dict[str, Any]:
    same = {key: container.get(key) for key in ("name", "image", "command", "args", "workingDir", "envFrom")}
    return {**same, "env": sorted(_variables(container, names))}


def _variables(container: Fields, names: Iterable[str]) -> Iterator[str]:
    for one in objects.mappings(container.get("env")):
        called = str(one.get("name"))
        if VARYING.fullmatch(called):
            continue
        value = str(one.get("value") or json.dumps(one.get("valueFrom"), sort_keys=True, default=str))
        for name in names:
            value = re.sub(rf"(?<![a-z0-9-]){re.escape(name)}(?![a-z0-9])", "*", value)
        yield f"{called}={value}"
