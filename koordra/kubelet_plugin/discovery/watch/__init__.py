"""Changes of a machine.

watcher         reads the machine again when something announces a change
events          what can be announced, and the protocol of who announces it
netlink         uevents and changes of network links
xid_events      Xids from NVML's event set
change_probe    a cheap fingerprint of the machine, for what announces nothing
gpu_health      which GPUs are faulty, from their Xids
"""
