"""Cards that are cut into slices: `layout` says how a card may be cut, `profiles` which of its places would serve a request,
`mig_placement` which place to take.
"""
