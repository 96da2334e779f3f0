"""The machine in /sys and /dev, below a root path.

machine_root    reads files that may be missing, garbled, or a picture of another machine's; device nodes and their numbers
pci_tree        PCI functions, bridges, NUMA nodes and sockets
"""
