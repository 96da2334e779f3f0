"""What the real API server refuses, rule by rule, as field errors.

`forms`        forms of pools, UUIDs, versions and quantities
`metadata`     its changes
`cel`          expressions, where nobody compiles them
`status`       ResourceClaim status: write-once allocation and kin
`slices`       ResourceSlices
`taints`       of devices, DeviceTaintRules
`pods`         Pods: what may change, gates, binding
`nodes`        nodes and leases
`workloads`    Jobs and kin, priority classes
`definitions`  CustomResourceDefinitions, webhook configurations

New claims, templates and DeviceClasses are refused by koordra's own code (koordra/kube/validation).
Source of the rules: k8s.io/kubernetes pkg/apis/{core,resource}/validation of 1.37.
"""
