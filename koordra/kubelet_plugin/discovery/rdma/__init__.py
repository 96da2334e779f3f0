"""RDMA devices of a machine.

rdma_devices    NICs and virtual functions of any vendor, from /sys/class/infiniband; sub-functions on the auxiliary bus
interfaces      network interfaces and character devices of a NIC
"""
