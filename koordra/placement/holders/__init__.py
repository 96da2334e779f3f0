"""Who uses what of a cluster.

allocations    claims with an allocation: the devices of pools
device_hold    devices that nobody has, and that are kept for somebody
node_pods      pods: CPU, memory and the like of nodes
"""
