"""Manifests in files, and what the controller would do with them: for `koordra plan` and `explain -f`.

manifests       from manifests to a forecast, and what every claim gets
machines        machines that nobody has here, and nodes of them
workload_pods   the pods of workloads that were never applied
"""
