"""NICs in the network namespaces of pods.

network_decision    what happens to each NIC of a claim, decided in Prepare (pure)
interface_gate      the mounts that keep a container waiting for it
fabric_files        what NCCL and UCX must know of the network, in their files (pure)
pod_network         attaches NICs to a pod's sandbox and detaches them
patient_networks    the same for a runtime that does not wait long
netlink_links       network interfaces over netlink
roce_gid            whether a RoCE NIC has a routable address in the pod
rdma_links          RDMA devices over NETLINK_RDMA
address_pools       the operator's pools of addresses, and one that is free in them (pure)
node_parts          this node's part of each pool
consumers           a claim's pods, and the networks that they and it ask for
interface_addresses the addresses of an interface: the class's, or one of a pool (pure)
virtual_functions   makes those that the operator wants, before the plugin starts; their GUIDs
cni                 the CNI plugins of a NetworkAttachmentDefinition
"""
