"""The scheduler double: what koordra's controller sees of kube-scheduler, as measured on a real cluster.

    requests.py   what a pod needs and what a node has left
    nodes.py      node selectors, taints
    filters.py    every filter in the real order; the claim filter comes last
    claims.py     pre-allocated claims: PreEnqueue, PreFilter, Filter, PostFilter, as pure functions
    loop.py       the queue, the cycle, PreBind and binding

It honours claims that somebody else has allocated and allocates none itself: a pod whose claim has no
allocation waits with "cannot allocate all claims", which is also what the real one answers for devices with
an untolerated NoSchedule taint.
"""
