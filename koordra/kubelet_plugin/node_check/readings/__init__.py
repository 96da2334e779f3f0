"""What the files of a node say, as frozen values. Nothing here judges, raises or blocks: what is missing or
garbled is None, empty or left out.

node                              everything about one node
host_files, live_node             how a node is read: files below a root; what is asked of a live one
setting                           a value with the line that says it
container_runtime/                containerd and CRI-O
driver, gpu_devices, nvml_answers the GPUs
rdma, pcie, cgroup, cdi           the rest of the machine
kubelet, processes                what runs on it
koordra_node                      koordra's own parts, and others that give out devices
"""
