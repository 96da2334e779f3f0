"""Joint mode: one active controller allocates claims ahead of kube-scheduler, which honours what it finds.

    run                the process: the webhook with all its paths, in every replica; the lease, and the
                       leader's term
    claims             reading ResourceClaims

    reconcile/         the loops of a term, and a pass of the main one: which groups have their turn, in which
                       order
    allocation/        one allocation, from what it is decided from to its writes
    cache/             objects as the watches have them, our own writes laid over, and the indices that a pass
                       acts on
    quota/             ResourceQuotas that bound shares of devices
    gangs/             pods of one job that get their devices together
    autoscale/         nodes that are not there yet
    reporting/         Events, metrics and latency
    explain/           what is answered to `koordra explain`
    webhook/           what users write is checked and completed before it is stored
    legacy/  elastic/  resource_class/

All state that matters is in the API: a controller that starts anew repairs whatever its predecessor left half
done.
"""
