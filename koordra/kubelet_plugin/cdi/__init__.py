"""What a container gets with the devices of a claim.

claim_spec            the claim's CDI spec file
validation            the rules on which a CDI loader refuses a spec
device_edits          per device: nodes, driver files, the variables of CUDA, NCCL and UCX
container_files       files a container can read: device metadata (KEP 5304), NCCL topology, hostfile
environment           a gang member's rank, hosts and hostfile; variables that other stacks' device plugins set
"""
