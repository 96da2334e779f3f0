"""What the controller knows of the cluster: objects as the watches have them, and the indices that a pass reads.

informers       the watches of one term of leadership; each event is queued as a change
changes         the queue between the watches' threads and the worker
assume_cache    our own writes that the watches do not show yet, laid over the claims
cluster_cache   the objects by kind; applies changes and keeps the indices below
pod_index       pods with their claims, sorted by what is to be done about them
claim_index     claims that are held, that are orphaned, and that ask to be allocated without a pod
node_index      slices, claims with devices and pods by node
groups          pods that are decided together
capacity_epoch  whether anything could have made room
audit           the full read that proves the indices right
pod_claims, priority, pod_group_kinds    a pod with its claims; who comes first; the pod groups of other systems
"""
