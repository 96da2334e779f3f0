"""The development cluster: a double of a Kubernetes cluster for a laptop, `koordra demo` and the tests.

It is NOT Kubernetes and is not meant to run anything real. It answers the API calls, keeps the state and shows the behaviour
that koordra depends on, as measured on real clusters, so that the same controller, kubelet plugin and NRI plugin run against
it unchanged over the same sockets.

    apiserver/   HTTP API server on loopback, bearer token, state in sqlite
    claims.py    kube-controller-manager's loops for ResourceClaims;  garbage.py: owner references, namespaces
    scheduler/   kube-scheduler: filters in the real order, pre-allocated claims, the two ways of saying no
    kubelet/     one kubelet per node: registers plugins, prepares claims, runs pods
    runtime.py   the container runtime: CDI (cdi.py) and the runtime side of NRI (nri_runtime.py); containers are records

The loops know nothing of koordra: they talk HTTP, gRPC, CDI and NRI to whoever is there.
"""
