"""GPUs of a machine.

gpus                sysfs, NVML and /proc/driver/nvidia put together; what contradicts is not offered
mig_nodes           the capability nodes of MIG instances
driver_libraries    the driver's user-space files
"""
