"""Who uses what of a cluster.

allocations    claims with an allocation: the devices of pools
device_hold    devices that nobody has, and that are kept for somebody
reservation    what users want kept, and for whom
kept_devices   places for who is asked about in what is kept for him
reserved_seats what is kept for them, and what is left of it
node_pods      pods: CPU, memory and the like of nodes
"""
