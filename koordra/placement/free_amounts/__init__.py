"""Nodes and requests as whole numbers: `state` has the values, `node_devices` reads a node's published
devices as such, and `request_mapping` what claims ask for. How a card is cut into slices is `mig`'s.
"""
