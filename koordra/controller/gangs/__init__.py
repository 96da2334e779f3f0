"""Gangs: pods of one job that get their devices together, or not at all.

    declared/           what a pod declares: which gang (koordra's own annotations, Kubernetes' PodGroup and
                        Workload, or the pod groups of Koordinator, coscheduling, Volcano and Kueue), at which
                        position of its job, and on what terms; what the webhook refuses
    membership          the pods of each gang, and how far each of them is
    expected/           members that are not made before those that are there have started
    phase               from that to the one thing that is to be done next; pure, and nothing but the API
                        objects go in, so that a controller that starts anew goes on where its predecessor was
                        killed
    controller          what happens to gangs in a pass
    planner             a gang's turn: places are looked for and written, or it is told why it waits
    member_placement    places for the members: `koordra.placement.gang`, shown what the controller knows
    imex/               gangs share memory over NVLink: whose the channels of each node are
    seats/              what a started gang has, on record, and what is held for it when a member is lost
    live/               whose rank is which, and what a gang is now, in the pods that have a volume for it
    commit              the writes: allocations, then gates; what was written is taken back when one fails
    preemption          who gives way to a gang that is more urgent
    eviction            members that are evicted for the gang, or for another one
    events              what people read about it

Until a gate of the gang is removed, the gang holds devices only within one pass; a pass that is cut off is
undone by the next one. Removing the first gate is the commit point: from there on the gang is completed,
never undone, except by its own policy.
"""
