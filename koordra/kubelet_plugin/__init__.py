"""The node side: a DRA kubelet plugin for GPUs, MIG instances, RDMA NICs and their virtual functions.

driver       one instance of the plugin, wired together: start, changes of the machine, stop
settings     the command line as a value
dra/         what the kubelet sees: registration, NodePrepareResources, health streams, the unix sockets
prepare/     the decision about one claim, the state machine around it, the files of a claim
claims/      what the node keeps of a claim: its record, container edits, parameters, checkpoint
cdi/         what a container gets with a device: CDI spec, environment, mounted files
publish/     the machine as ResourceSlices: inventory, attributes, capacities, counters, taints
network/     NICs in the network namespaces of pods
isolation/   the backends that keep a share of a GPU to its limits
sampling/    use of GPUs and NICs, and whose it is: the one sampler
discovery/   the machine: sysfs, NVML, RDMA, and the watcher of changes
nvidia_driver/   where NVIDIA's driver lives, and what containers get of it
node_check/  preflight of the node: `koordra node check`, and once at the plugin's start
status/      what others see of the node: claim status, device health, node labels, metrics, dump
"""
