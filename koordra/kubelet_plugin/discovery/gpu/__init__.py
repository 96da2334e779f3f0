"""GPUs of a machine.

gpus                sysfs, NVML and /proc put together; what contradicts is not offered
mig_nodes           the capability nodes of MIG instances
proc_driver         /proc/driver/nvidia
driver_libraries    the driver's user-space files
"""
