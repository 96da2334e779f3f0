"""What the readings of a node mean. Each check is a function from the node's readings to an outcome; where
they stand in the report is in node_check.check_node.

driver          the GPU driver and NVML
gpu_devices     device nodes of the GPUs, and who has them open
gpu_state       remapped memory, MIG mode, fabric, IMEX
runtime         containerd or CRI-O: CDI, NRI, default runtime, locked memory
cgroup          cgroups, SELinux
rdma            RDMA devices, ports, GPUDirect
pcie            links, access control, IOMMU
kubelet         the kubelet's resource managers
koordra_node    koordra's own parts, and others that give out devices
"""
