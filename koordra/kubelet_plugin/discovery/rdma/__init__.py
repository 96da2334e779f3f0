"""RDMA devices of a machine.

rdma_devices    NICs and virtual functions of any vendor, from /sys/class/infiniband
interfaces      network interfaces of a NIC
subfunctions    sub-functions on the auxiliary bus
"""
