"""Prepare and Unprepare of a claim.

device_state        the state machine: what is promised to the kubelet survives every way to die
prepare_decision    what a claim gets on this node, or why it is refused (pure)
allocation_checks   the checks that nothing is used beyond its capacity and that Required scopes hold
claim_files         the files of a claim, in the order in which they are written and removed
device_guard        guarded.json, the device nodes that no container may open without a claim
claim_audit         prepared claims that the API server no longer knows
"""
