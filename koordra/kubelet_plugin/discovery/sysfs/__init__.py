"""The machine in /sys and /dev, below a root path.

machine_root    reads files that may be missing, garbled, or a picture of another machine's
pci_tree        PCI functions, bridges, NUMA nodes and sockets
device_nodes    character devices and their numbers
"""
