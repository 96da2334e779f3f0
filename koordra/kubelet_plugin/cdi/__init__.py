"""What a container gets with the devices of a claim.

claim_spec            the claim's CDI spec file; the rules on which a CDI loader refuses a spec
container_hook        the claim's hook, which makes the container's loader find the driver: its arguments
hook_program          the program on the node
device_edits          per device: nodes, variables of NCCL and UCX, of a gang's member and of other stacks
driver_edits          of NVIDIA's driver: files, links and nodes of the parts that are asked for
container_files       files a container can read: device metadata (KEP 5304), NCCL topology, hostfile
runtime_support       what the node's container runtime understands of CDI
"""
