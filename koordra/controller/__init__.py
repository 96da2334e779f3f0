"""Joint mode: one active controller allocates claims ahead of kube-scheduler, which honours what it finds.

One pass of the reconciler, told by module:

    caches       watch caches of nodes, slices, classes, claims and pods; any change wakes the worker
    assumed      our own writes that the caches do not show yet are laid over them
    snapshot     which pods wait for which claims of koordra, joined into groups that are planned together
    answers      did the scheduler say no to an allocation? grants keeps what that needs to remember;
                 exclusions keeps the pod off the node for a while, and the devices are given back
    order        pod priority, then age
    planning     one group at a time goes through `koordra.placement.plan`: all of its claims, or none
    inventory    has anything changed that could make room for those that wait?
    writes       finalizer, then allocation, then the pod's gate; every write is conditional
    happenings   what is worth telling; announcements keeps it from being told twice; events, logs and
                 metrics listen

`lease` decides who is active and stops a writer before its lease ends; `run` is the process. Everything but
caches, writes, events, lease and run is a function of values. All state that matters is in the API: a
controller that starts anew repairs whatever its predecessor left half done.
"""
