"""The fewest moves that free a shape.

`emptying` finds sets of devices and who uses them, `moves` where those could go by free amounts, and
`cluster` asks the engine over the cluster's own objects.
"""
