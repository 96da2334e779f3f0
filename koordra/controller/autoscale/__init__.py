"""Nodes that are not there yet: which would make what waits fit, and asking an autoscaler for them.

node_groups    groups of nodes that somebody can add to, and what a new node of one looks like
scale_up       the fewest new nodes with which the controller would serve the most: forecasts, no more
"""
