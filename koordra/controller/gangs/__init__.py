"""Gangs: pods of one job that get their devices together, or not at all.

One pass, told by module:

    marks        which gang a pod says it belongs to: koordra's own annotations, Kubernetes' PodGroup and Workload, or the
                 pod groups of Koordinator, coscheduling, Volcano and Kueue; and on what terms
    membership   the pods of each gang, and how far each of them is
    stages       from that to the one thing that is to be done next; pure, and nothing but the API objects go in, so that
                 a controller that starts anew goes on where its predecessor was killed
    planning     places for the members: `koordra.placement.gang`, shown what the controller knows
    commit       the writes: allocations, then gates; what was written is taken back when one fails
    keeping      nodes that are kept free for a gang that has waited too long
    lifting      what is known of gates that were lifted and that the caches do not show yet
    holding      members that a quota holds
    telling      what people read about it
    course       the pass itself

Until a gate of the gang is lifted, the gang holds devices only within one pass; a pass that is cut off is undone by the
next one. Lifting the first gate is the commit point: from there on the gang is completed, never undone, except by its own
policy.
"""
