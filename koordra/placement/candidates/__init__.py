"""The nodes for one request class: `candidate_list` has them best first, by bounds (`cost_bound`) until the
search has worked out what they cost, and keeps what it said. `node_scoring`: nodes packed or spread by the
operator's weights.
"""
