"""NICs in the network namespaces of pods.

network_decision    what happens to each NIC of a claim, decided in Prepare (pure); the mounts that keep a
                    container waiting for it
pod_network         attaches NICs to a pod's sandbox and detaches them
netlink_links       network interfaces over netlink
rdma_links          RDMA devices over NETLINK_RDMA
cni                 the CNI plugins of a NetworkAttachmentDefinition
"""
