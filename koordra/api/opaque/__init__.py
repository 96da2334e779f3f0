"""Opaque parameters of koordra.io/v1alpha1, in `devices.config` of claims, classes and allocations.

`parameters`    the five kinds, strictly decoded: JointAllocation, PlacementPolicy, GpuConfig, RdmaConfig,
                ImexConfig
`authority`     which of their fields a claim may say, and which the operator alone
`configuration` those of class and claim for a request, by precedence
`isolation`     what keeps a share of a GPU: the operator's policy above class and claim
`rdma_network`  RdmaConfig.network
`rdma_fabric`   RdmaConfig.fabric
`gang_member`   the controller's word in an allocation: a member's place in its gang
`imex`          ImexConfig, and the controller's word in an allocation: which domain its channels are in
"""
