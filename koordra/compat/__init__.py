"""Pods that ask for devices by extended resources: nine dialects, one normal form, one kind of claim. Pure.

    pod ──> detection            which dialect it speaks; two are refused
        ──> dialects/<name>      names, units, defaults, precedence: everything that is one dialect's alone
        ──> normalized_request   shares per container, what belongs together, policies
        ──> request_merging      requests; init containers use what the others have
        ──> claims               requests, constraints, configuration of a ResourceClaim
        ──> rewrite              the pod that refers to it, and its content-addressed template

    dialect            what a dialect is: names, how a pod is read, what quotas, variables and annotations are made of it
    settings           what an operator has set
    original_request   a rewritten pod, worked out again
    quota_charges      what a claim amounts to in its dialect's words         foreign_plugins         who else gives out cards
    unknown_names      slips of the pen, other vendors' accelerators          manifests               the door for `koordra convert`

What a dialect means and koordra cannot do is refused or warned about by name, never passed over.
"""
