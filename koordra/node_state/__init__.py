"""The files by which the kubelet plugin and the NRI hook of a node tell each other about claims.

disk            files that are replaced as a whole, durably
network_plan    what is done to a NIC once the network namespace of its pod exists
"""
