"""The allocator at cluster scale: which node, among ten thousand, for a request class.

    states       a node as kind and state, a pod as request: the values everything else computes with
    columns      states and classes as columns of numbers
    fleet        nodes by state, keys kept per class and state, the decision
    leftover     the policy `koordra`: expected leftover; lacking, blocks, device_costs, joint are its terms
    table        what it knows of a workload; learning makes it, workload counts
    likenesses   states that differ only by which of two equal switches holds what
    view, rank   the cluster's own objects as a fleet, and the order of nodes; ranked and solved are how `plan()` uses it
    defragment   the fewest moves that free a shape; freeing asks it over the cluster's own objects

Pure like the rest of the allocator: no clock, no files, and randomness only as a generator that the caller gives.
"""
