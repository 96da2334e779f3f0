"""ResourceClass (koordra.io/v1alpha1) -> DeviceClass, kept that way.

    expansion   the same for manifests that were never applied, and the selectors' check
    reconcile   every ResourceClass against the DeviceClass that it means, after any change in the leader's
                term; conditions; suitableNodes: which nodes a pod's classes leave, as node affinity

What a ResourceClass means is koordra.api.resource_class. The DeviceClass belongs to its ResourceClass (owner
reference), so deleting one deletes the other through garbage collection, also when koordra is gone. What
somebody changes on the DeviceClass is put back; a DeviceClass of that name that belongs to nobody or to
somebody else is left alone, and the condition says so.
"""
