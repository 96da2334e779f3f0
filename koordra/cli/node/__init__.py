"""`koordra node`: commands about the node they run on, as root on the host or inside the kubelet plugin's pod
(`kubectl exec`), where the host's files are below KOORDRA_HOST_ROOT. They need no API server.

group             the table of commands
check             preflight: what of this node is not as koordra and its pods need it
selftest          whether what koordra gives a container works on this machine's GPU
make_vfs          virtual functions of NICs, where there are none and nobody else has a say
top               what the limited claims use of their GPUs, by process where asked
release_driver    lets go of NVIDIA's driver, for an upgrade
"""
