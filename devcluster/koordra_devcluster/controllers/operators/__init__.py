"""Doubles of the operators whose jobs koordra places: what each makes of its objects, and no more. They know
nothing of koordra.

    JobSet             a Job for each replica of each of its jobs, a headless Service
    Kueue              a suspended Job with a queue is let start: the queue has room
    Training Operator  PyTorchJob, MPIJob: the pods of their replicas with the operators' variables
    Volcano            Job: a PodGroup, and the pods of its tasks
    Multus             its networks are stored; nothing attaches them

Each makes what is missing and removes nothing; restarts, elasticity, quota and status beyond a phase are left
out. The kinds come from definitions (`definitions`) that take pod templates as they are: what is made of
them the API server judges.
"""

from __future__ import annotations

from typing import Final

OPERATORS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "jobset": (("jobset.x-k8s.io/v1alpha2", "JobSet"),),
    "kueue": (),
    "training-operator": (("kubeflow.org/v1", "PyTorchJob"), ("kubeflow.org/v2beta1", "MPIJob")),
    "volcano": (("batch.volcano.sh/v1alpha1", "Job"), ("scheduling.volcano.sh/v1beta1", "PodGroup")),
    "multus": (("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),),
}
"""Operator -> (apiVersion, kind) of what is its."""

QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a Job that Kueue lets start."""
