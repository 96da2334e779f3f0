"""Cards that are cut into slices: `layout` says how a card may be cut and what a slice is, `profiles` which
of its places would serve a request. What a cut card is worth, and which place to take, is the policy's
(`policy/mig_placement`). `mode_switch` finds the cards that would have to be cut, or whole, for a group.
"""
