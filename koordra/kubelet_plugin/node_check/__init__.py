"""Preflight of a node: is everything on it as koordra, and the pods that it gives devices to, need it.

A node that is not ready fails late and in other words: a container without its libraries, a claim that waits,
an RDMA transfer that times out. The checks say it beforehand, each with what was found and the remedy.

readings/     what the node's files say, as values; the only part that reads
checks/       what a reading means: values in, outcome out
result        outcome and result of a check
check_node    the table of all checks
host_imex     whether the host runs an IMEX daemon of its own
report        the results in words and as a document
at_start      the problems in the plugin's log and metrics
"""
