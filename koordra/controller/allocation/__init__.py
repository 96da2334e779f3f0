"""One allocation: what it is decided from, step by step of a pass, and how it is written.

placer                the best node for a group, by the engine of koordra.placement
learned/              what was learned of the workload and of how long claims run, and where it is kept
writes                finalizer, then allocation, then the pod's gate; every write is conditional
pass_context          the state that all steps share, and the outcome of writes
scheduler_feedback    did kube-scheduler refuse an allocation? the rules, and the allocations that wait for
                      its answer
node_backoff          nodes that a pod stays off for a while because kube-scheduler refused it there
interpod_predicates   host ports, affinity, topology spread, volumes
waiting_reasons       why claims wait, in the words of each
guest_index           pods on nodes by what such predicates ask about them
label_selectors       label selectors and terms of affinity, read once
reservations          nodes that are kept free for groups and gangs that would starve
eviction/             who loses devices to others: to more urgent pods, to pods that wait, to drivers
"""
