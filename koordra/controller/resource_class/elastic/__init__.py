"""Elastic GPU's objects, served: classes and claims as people write them, cards and shares as they are.

    ElasticGPUClass ──> DeviceClass of the same name                                    reconcile
    ElasticGPUClaim ──> ResourceClaim of the same name; phase, conditions <── it        claims
    ResourceClaim   ──> ElasticGPU: what the claim has, and where                       cards
    ResourceSlices  ──> GPU: the cards of the nodes, what of them is taken, by whom     cards
    reconcile       one pass over all of it, after any change in the leader's term; it creates, updates and
                    deletes what those want, and nothing of somebody else's

The claim's devices are chosen by the allocator as for every ResourceClaim; nothing here allocates.

    egpuBindingMode  Immediate              devices as soon as the claim is there
                     WaitForFirstConsumer   with the first pod
    reclaimPolicy    Delete   the devices are free when the last pod has ended, and the ResourceClaim goes
                              with the ElasticGPUClaim (owner reference): also when koordra is gone
                     Retain   the devices stay with the claim between pods, and after the claim was deleted:
                              the ElasticGPU is then Released, and deleting it frees them. koordra's own
                              finalizer on the ResourceClaim, in place of the builtin one, holds them

The policy is written down on the ResourceClaim when it is made; a class that changes later changes new claims
only.
"""
