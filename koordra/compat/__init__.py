"""Pods that ask for devices by extended resources: nine dialects, one normal form, one kind of claim. Pure.

    pod ──> detection            which dialect it speaks; two are refused; names that are no dialect's
        ──> dialects/<name>      names, units, defaults, precedence: everything that is one dialect's alone
        ──> normalized_request   shares per container, what belongs together, policies
        ──> request_merging      requests; init containers use what the others have
        ──> claims               requests, constraints, configuration of a ResourceClaim
        ──> rewrite              the pod that refers to it, and its content-addressed template

    dialect             what a dialect is, and what dialects have in common
    settings            what an operator has set, read by settings_document
    original_request    a rewritten pod, rewritten again from what it carries
    quota_charges       what a claim amounts to under its dialect's names
    manifests           legacy pods in files, for `koordra convert`

A new dialect is a file in dialects/ and a line of the registry there; nothing else names one.
What a dialect means and koordra cannot do is refused or warned about by name, never passed over.
"""
