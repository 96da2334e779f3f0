"""NVIDIA's driver on this node: where it lives, what containers get of it, and how it is upgraded.

driver_root        where the driver lives (`DriverRoot`): the root of its files, its device nodes
homes              finds the home: packages, a driver container, Container-Optimized OS, /usr/local/nvidia
paths_below        paths below a folder that stands for `/`
ld_cache           reading an ld.so.cache
driver_libraries   which of the root's libraries are the driver's, with their links, and what each is for
driver_files       everything that a container can get of the driver, by the part that it belongs to
nvml_session       NVML of the driver that the node has now, for as long as somebody uses it
release_wanted     who wants the driver to be free, and how far
release            lets go of it, step by step, and takes it up again
release_request    the operator's side of that
device_holders     who holds the driver's device nodes open
node_numbers       device nodes by number, also those that nobody has made
device_nodes       nodes that the plugin makes where the host has none
"""
