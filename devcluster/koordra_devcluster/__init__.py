"""The development cluster: a double of a Kubernetes cluster for a laptop, `koordra demo` and the tests.

It is NOT Kubernetes and is not meant to run anything real. It answers the API calls, keeps the state and
shows the behaviour that koordra depends on, as measured on real clusters, so that the same controller,
kubelet plugin and NRI plugin run against it unchanged over the same sockets.

    apiserver/   HTTP API server on loopback, bearer token, state in sqlite
    controllers/ kube-controller-manager's loops: ResourceClaims, workloads; garbage: owner references,
                 namespaces; operators/: those of JobSet, Kueue, Kubeflow and Volcano
    scheduler/   kube-scheduler: filters in the real order, pre-allocated claims, the two ways of saying no
    kubelet/     one kubelet per node: registers plugins, prepares claims, runs pods
    container_runtime/  CDI and the runtime side of NRI; containers are records
    control_plane.py    API server, controllers and scheduler in one process; cli.py: `koordra devcluster`
    demo/               `koordra demo`: koordra itself on a cluster of doubles

The loops know nothing of koordra: they talk HTTP, gRPC, CDI and NRI to whoever is there.
"""
