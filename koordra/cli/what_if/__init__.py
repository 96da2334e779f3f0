"""Manifests in files, and what the controller would do with them: for `koordra plan` and `explain -f`.

manifests       from manifests to a forecast, and what every claim gets
workload_pods   the pods of workloads that were never applied
"""
