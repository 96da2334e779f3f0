"""What the real API server refuses, rule by rule, as field errors.

`names`     forms of names, versions and quantities
`metadata`  names, labels, finalizers
`requests`  ResourceClaim and template specs
`status`    ResourceClaim status: write-once allocation and kin
`slices`    ResourceSlices
`classes`   DeviceClasses, DeviceTaintRules, selectors, configuration
`pods`      Pods: what may change, gates, binding
`nodes`     nodes and leases

Source of the rules: k8s.io/kubernetes pkg/apis/{core,resource}/validation of 1.37.
"""
