"""What the controller knows of the cluster: objects as the watches have them, and the indices that a pass
reads.

kept_fields     what is kept of an object
downward        annotations that a pod's volumes show
changes         the kinds, the watches of one term of leadership, and the queue between their threads and the
                worker
assume_cache    our own writes that the watches do not show yet, laid over the claims
ungate_tracker  gates that we lifted, and that the watches do not show yet
cluster_cache   the objects by kind; applies changes and keeps the indices below, and the epoch of what could
                have made room
consumers       whom a claim is reserved for: a pod, or the group it is in
pod_index       pods with their claims, sorted by what is to be done about them
claim_index     claims, read once a version: held, orphaned, asking for devices without a pod; by pool
slice_index     slices by node and by pool
placeholders    pods that stand for new nodes
groups          pods that are decided together, and who comes first
"""
