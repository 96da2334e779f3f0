"""What a node has: GPUs, RDMA NICs and where they sit.

reading             one reading of the machine below a root path: ``discover``; its corrections; a cheap
                    fingerprint
machine_root        reads files that may be missing, garbled, or a picture of another machine's; the result of
                    a reading
pci_tree            PCI functions, bridges, NUMA nodes and sockets
nvml_query          single calls of NVML and their failures
nvml_gpus           what NVML says about the GPUs and their MIG instances
nvml_recording      the same facts from a file, for captured and made-up machines
gpu_health          the faults that NVML shows of a card: recovery, memory, fabric
gpu_faults          Xids as faults, and their ledger
link_flaps          links of NICs that go down again and again
gpus                GPUs put together from sysfs, NVML and /proc; MIG device nodes
rdma_devices        RDMA NICs, virtual functions, sub-functions, network interfaces
events/             events of the kernel and of NVML
watcher             reads again when something changes
"""
