"""The one sampler of a node: who is on which card, who computed how long, how cards and NICs are.

sampler          when what is read
sample           a sample, and the last ones, which everybody in this process reads. Values
nvml_cards       what NVML says of cards: processes, their utilisation, the card's state
host_processes   whose a process of the host is: its container and its claims
device_time      how long each process's kernels ran, by the driver's samples. Pure
nic_counters     what the ports of RDMA devices count. Pure but for the reading of one sysfs
port_reader      the ports of devices on the host and in pods
cgroups          what containers use of processors and memory
holdings         who has how much of the GPUs, and for how long they had it. Pure
use              what was read, by card, container and port: the rows of a sample. Pure
use_metrics      that for Prometheus
pod_use          what pods used between two samples. Pure
profiles         that of each pod's whole life, in bounded size, on disk and for whoever asks

The limiter (isolation/limiter) compares its ledgers with the sampler's process lists, and tells each claim
how long its kernels ran (seen_time). Nothing that is read here is a tenant's word: names and claims of
containers are the hook's, pids, cgroups and mounts the kernel's, bytes and time on cards the driver's.
"""
