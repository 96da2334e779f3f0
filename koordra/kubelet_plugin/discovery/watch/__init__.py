"""Changes of a machine.

watcher       reads the machine again when something announces a change
events        what can be announced; the kernel's announcements: uevents and changes of network links
xid_events    Xids from NVML's event set
gpu_health    which GPUs are faulty, from their Xids
"""
