"""`koordra plan`, `koordra explain`, `koordra convert`; files is how they read manifests.

workload_pods makes the pods that a workload in a file stands for.
"""
