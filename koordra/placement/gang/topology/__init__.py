"""A gang over the network: the tree of domains, the level it has to stay in, how its members are packed and
spread over it, and how few rails they touch.
"""
