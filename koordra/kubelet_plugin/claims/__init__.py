"""What the node keeps of a claim.

claim_record    one prepared claim, complete enough to make all of its files again; changes to a container
checkpoint      all records on disk: versioned, checksummed, fsynced; their recovery where it is lost
"""
