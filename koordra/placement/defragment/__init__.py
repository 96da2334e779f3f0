"""The fewest moves that free a shape.

`emptying` finds sets of devices and who uses them, `moves` where those can go, `capacity_check` bounds it by counting, and
`cluster` asks it over the cluster's own objects.
"""
