"""What a node has: GPUs, RDMA NICs and where they sit.

reading    one reading of the machine below a root path: ``discover``; its corrections; a cheap fingerprint
result     what a reading gives: the machine, and the problems
sysfs/     the PCI tree, NUMA nodes and device nodes
nvml/      what NVML, or a recording of it, says about the GPUs
gpu/       GPUs put together from sysfs, NVML and /proc; MIG device nodes; the driver's files
rdma/      RDMA NICs, virtual functions, sub-functions, network interfaces
watch/     events of the kernel and of NVML, and the watcher that reads again
"""
