"""`koordra replay`: a recorded workload on an empty cluster, placed by koordra's policy or by published ones.

    openb, dlrm          the two trace formats; dlrm also replays its own, since its pods leave
    replay               pods arrive in random order until the cluster is more than full; each is tried once
    policies             policies by name
    baseline_policies    the published policies that koordra's is compared with, and first-fit
    fgd                  one more, with its measure of a cluster's fragmentation
    report, plot         the result as a document, a table, an SVG

Pure: times come from the caller's clock, randomness from the caller's generator.
"""
