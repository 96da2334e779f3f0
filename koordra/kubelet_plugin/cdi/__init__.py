"""What a container gets with the devices of a claim.

claim_spec            the claim's CDI spec file; the rules on which a CDI loader refuses a spec
device_edits          per device: nodes, driver files, variables of CUDA, NCCL, UCX, of a gang's member and of
                      other stacks
container_files       files a container can read: device metadata (KEP 5304), NCCL topology, hostfile
"""
