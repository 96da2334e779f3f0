"""Backend `limiter`: the node's side of native/limiter.

backend             what a container gets, what is made on the node for it, and the end of both
mounts              the library in front of the driver's, wherever a device brings it
folders             a small file system for each claim
layout, region      what the node and the processes of a claim share: bytes, and their meaning
broker              the socket where processes say who they are
process_liveness    who of a claim's processes lives, by locks that the kernel drops
processes           the processes of a card, as the driver and the kernel see them
contexts            what a CUDA context takes
unaccounted_memory  what a claim uses beyond its ledger
reconcile           the second look: ledger against driver, at a pace of poll_interval
report              metrics, and the verdict of the condition `Limited`
"""
