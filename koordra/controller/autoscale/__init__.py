"""Nodes that are not there yet: which would make what waits fit, and asking an autoscaler for them.

node_groups    groups of nodes that somebody can add to, and what a new node of one looks like
settings       what the operator says of groups
scale_up       the fewest new nodes with which the controller would serve the most: forecasts, no more

needs          which of them are wanted now
asks           placeholders: what is asked for (cache/placeholders), and how far it is
quotas         a leader's quotas in a forecast beside it
left_out       groups that did not deliver
asking         the loop of a leader's term
"""
