"""What the node keeps of a claim.

configuration      koordra's opaque parameters in an allocation, by precedence
container_edits    changes to a container: environment, device nodes, mounts, hooks
claim_record       one prepared claim, complete enough to make all of its files again
checkpoint         all records on disk: versioned, checksummed, fsynced; their recovery where it is lost
"""
