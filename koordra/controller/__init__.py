"""Joint mode: one active controller allocates claims ahead of kube-scheduler, which honours what it finds.

    run                the process: lease, informers, passes
    reconciler         one pass, step by step
    allocation_step    its planning step: groups that wait, most urgent first
    group_queue        the groups that wait, and which of them a pass considers
    writes             finalizer, then allocation, then the pod's gate; every write is conditional
    claims             reading ResourceClaims
    placer             the best node for a group, by the engine of koordra.placement
    leftover_store     where what was learned of the workload outlives the controller
    dry_run            what the next pass would decide, without writing
    pod_requeue        pods that their kubelet has given up for a minute
    leadership         who is active; stops a writer before its lease ends

    cache/             objects as the watches have them, our own writes laid over, and the indices that a pass acts on
    allocation/        what a decision is made from: pass context, scheduler feedback, back-off, predicates, reservations, preemption
    conflicts/         what nobody but koordra should do with its devices
    reporting/         Events, metrics and latency
    gangs/  legacy/  elastic/  resource_class/  webhook/

All state that matters is in the API: a controller that starts anew repairs whatever its predecessor left half done.
"""
