"""Pods that ask for devices by extended resources: nine vocabularies, one normal form, one kind of claim. Pure.

    pod ──> signs        which dialect it speaks; two are refused
        ──> <dialect>    hami, volcano, koordinator, aliyun, alnair, elastic, tke, plain: names, units, defaults, precedence
        ──> normal       shares per container, what belongs together, policies
        ──> lots         requests; init containers use what the others have
        ──> claims       requests, constraints, configuration of a ResourceClaim
        ──> rewrite      the pod that refers to it, and its content-addressed template

    vocabulary   the tables of names, which the documentation prints       settings    what an operator has set
    templates    where workloads hold pods                                 translator  the door for `koordra convert`
    vendors      other vendors' accelerators, refused by name              npu         virtual NPUs, to name them

What a dialect means and koordra cannot do is refused or warned about by name, never passed over.
"""
