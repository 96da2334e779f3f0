"""Nodes and requests as columns of integers.

state             a node as kind and state, a pod as request: the values everything else computes with
arrays            states and request classes as numpy columns
fleet             nodes by state, keys kept per class and state, the smallest key
canonical         states that differ only by which of two equal switches holds what
node_devices      a node's published devices as a state; request_mapping: claims as a request
"""
