"""Policies: what a placement does to the claims that are to come.

`expected_waste` is the default one. Its terms: stranded_capacity, multi_gpu_fragmentation, device_costs. Devices inside a node:
device_selection, device_value, device_sets, joint_devices. What is known of a workload: workload (counts),
workload_table (what was made of them), workload_learning (how).
"""
