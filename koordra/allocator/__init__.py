"""The allocator: the devices that one group of claims gets on one node, jointly, or why it gets none.

Pure: no I/O, no clock, no randomness, no logger. Which node of a cluster is `koordra.placement`.

    group_search       one group on one node after the other: the way through everything below
    request/           what a claim asks for
    devices/           what a node offers, and which device can serve which request
    allocation_state   one node while a group is placed, in whole numbers
    search/            the devices of one node: branch and bound, symmetry, packing
    score              what makes one placement better than another: the only place where that is said;
                       selection_terms, device_table: its terms that read which devices are chosen
    joint_allocation   GPUs and NICs near each other; constraints: matchAttribute, distinctAttribute
    offer              a placement written as allocations
    explain/           why a claim fits on no node; reasons: the words
    predicates         what kube-scheduler would refuse about a node; features: the gates
"""
