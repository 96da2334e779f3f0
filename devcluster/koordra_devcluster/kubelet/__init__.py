"""The kubelet double: one per node. It registers DRA drivers, prepares claims and runs pods on the runtime
double.

kubelet.py         wiring, start-up (slices of the node go), pods of this node
node.py            the Node object and its lease
registry.py        plugins_registry: sockets that come and go, GetInfo, NotifyRegistrationStatus
drivers.py         connected drivers: newest first, v1 before v1beta1, slices wiped 30 s after the last one is
                   gone
claim_cache.py     prepared claims, on disk as dra_manager_state
resources.py       prepare and unprepare, with the kubelet's checks of claims and answers
pods.py            one pod: sandbox, containers, status, ending
volumes.py         downwardAPI, configMap and emptyDir volumes; the first follow the pod's annotations
names.py           hosts files with the pods' names, where their commands run
directory.py       inotify on one directory
"""
