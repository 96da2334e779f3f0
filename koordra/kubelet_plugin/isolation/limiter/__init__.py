"""Backend `limiter`: the node's side of native/limiter.

node_limiter        the parts below, as one node has them
backend             what a container gets, what is made on the node for it (a small file system), and the end
                    of both
region              what the node and the processes of a claim share: its layout, and what the node writes
usage               what the processes of a claim use, and who of them lives
broker              the socket where processes say who they are
unaccounted_memory  what a claim uses beyond its ledger; what a CUDA context takes
device_time         who may use the device time that others leave idle
seen_time           tells each claim how long its kernels really ran
overuse             who has more than its share, by what the driver says
reconcile           ledger against driver, at an interval that follows what changes
report              metrics, and the verdict of the condition `Limited`
"""
