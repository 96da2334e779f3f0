"""NICs in the network namespaces of pods.

network_decision    what happens to each NIC of a claim, decided in Prepare (pure) network_files       the
files by which Prepare and the NRI hook tell each other, and the mounts that hold containers back pod_network
NICs into a pod's sandbox and back netlink_links       network interfaces over netlink rdma_links
RDMA devices over NETLINK_RDMA cni                 a NetworkAttachmentDefinition's CNI plugins moved_nics
NICs that are in a pod, in a reading of the host
"""
