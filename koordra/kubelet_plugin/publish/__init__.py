"""The machine as ResourceSlices.

node_inventory       what the node has and offers right now, as one value
resource_slices      devices, capacities and counter sets, in slices (pure)
devices              one device as a slice writes it; MIG instances and virtual functions, and the counters
                     that exclude each other
drain_policy         which faults of a device end the pods that use it
node_slices          the slices of this node with its mode and its taints: cordons, held devices, other device
                     plugins
slice_content        slices in the API compared with the wanted ones
allocation_mode      the change between joint and native allocation
publisher            keeps the slices in the API
"""
