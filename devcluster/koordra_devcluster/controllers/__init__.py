"""kube-controller-manager's loops: ResourceClaims, owner references, workloads."""
