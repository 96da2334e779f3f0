"""What a pod declares about its gang. Pure.

    annotations    the names of koordra's own, and those that the controller alone writes
    workload_kind  by which labels the operators of jobs number their pods
    gang_by        which replica of its job a pod belongs to, where each is a gang of its own
    gang_ref       which gang a pod names: koordra's own annotation, or the pod group of somebody else
    member_index   at which position of its job a pod stands, the same for the pod that is made instead of it
    said           what the members of a gang say together
    topology_terms, topology_of_others, parts
                   where in the fabric it wants to be, and how the placement is asked for it
    subgroups      groups within groups, as KAI and Grove write them
    roles          how many members each role needs, and after whom it starts
    disruption     how a PodGroup of Kubernetes may be disrupted, and how urgent it is
    terms          how many members, for how long, and where: what all members agree on
    admission      which pods are held, and what the webhook refuses

Every file imports only earlier ones.
"""
