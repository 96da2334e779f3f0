"""`koordra replay`: a recorded workload on an empty cluster, placed by koordra's policy or by published ones.

    openb, dlrm          the two trace formats; dlrm also replays its own, since its pods leave
    replay               OpenB: pods arrive in random order until the cluster is more than full; each is tried
                         once
    fleet                the nodes of such a trace as columns of numbers
    learning             koordra's policy on them, and a better table for it
    baseline_policies    the published policies that koordra's is compared with; FGD has a measure of a
                         cluster's fragmentation
    machine_cluster      dlrm: nodes of one machine, on which the engine itself places pods
    report, plot         the result as a document, a table, an SVG

Pure: times come from the caller's clock, randomness from the caller's generator.
"""
