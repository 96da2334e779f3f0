"""Prepare and Unprepare of a claim.

device_state        the state machine: what is promised to the kubelet survives every way to die
calls_in_progress   Prepares that nobody waits for any more
prepare_decision    what a claim has where on this node, or why it is refused (pure)
identified_devices  the devices of the claim's results, each certain and the one that it was before (pure)
claim_edits         what its containers get, once its shares are made (pure)
isolated_shares     what keeps each of its shares of GPUs (pure)
lost_devices        devices of claims that are gone, moved, or others (pure)
allocation_checks   the checks that nothing is used beyond its capacity and that Required scopes hold
imex_loop           keeps what the node offers of IMEX, and the domain that it is in, as they are now
imex_membership     the node's part of an IMEX domain, as its claims say
stored_claims       the checkpoint as it is found: read, or rebuilt from the files of the claims
claim_files         the files of a claim, in the order in which they are written and removed
device_guard        guarded.json, the device nodes that no container may open without a claim
driver_of_claims    prepared claims follow a GPU driver that was upgraded or moved
claim_audit         prepared claims that the API server no longer knows
"""
