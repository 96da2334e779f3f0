"""Legacy pods in files: `koordra convert` asks `translator`; `pod_templates` finds the pods in workloads."""
