"""IMEX domains: which pods of several nodes share memory over NVLink.

domains    which domain each claim with IMEX channels is in, and whose the channels of a node are: one
           domain at a time
members    the nodes of each domain, told to their plugins in ConfigMaps
"""
