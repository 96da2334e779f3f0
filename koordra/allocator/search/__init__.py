"""Which devices of one node: `search` walks, everything else keeps the walk short.

feasibility        counting before it         symmetry, device_tree      choices that are the same
request_order      which request is first     lower_bound                what a choice costs at least
remaining_supply   what can still come        packing, share_packing     shares that fill their devices
partial_choice     what is chosen so far      solution                   what the walk produces
"""
