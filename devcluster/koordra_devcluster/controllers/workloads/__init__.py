"""The workload loops of kube-controller-manager, as observed on Kubernetes 1.36.2. They know nothing of
koordra.

    Deployment ──> ReplicaSets, one per pod template (rollout.py says how many pods each may have)
    ReplicaSet ──> pods, any of which may go
    StatefulSet ─> pods by ordinal, one after the other
    Job ─────────> pods until enough of them have succeeded, each counted once (finalizer
                   batch.kubernetes.io/job-tracking)

Every loop works alike: a change of the object or of one of its pods wakes it; it then asks the API server for
the object and for all that the object owns (never its own copy, so that nothing is made twice), makes or
removes pods, and writes the status. A loop that is killed at any moment goes on from what the API server has.

Left out, since nothing here needs it: DaemonSets, CronJobs, podFailurePolicy, successPolicy and
backoffLimitPerIndex of Jobs.
"""
