"""Which devices of one node: `search` walks, everything else keeps the walk short.

feasibility        counting before it            symmetry, device_tree   choices that are the same
partial_choice     what is asked and chosen      lower_bound             what a choice costs at least
remaining_supply   what can still come           packing                 shares that fill their devices
one_card           what a claim has beside a card by MPS
solution           what the walk produces        steps                   one device given, and taken back
"""
