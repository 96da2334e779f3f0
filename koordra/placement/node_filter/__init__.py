"""Which nodes a request may use, judged once per cell: nodes that no request can tell apart.

`device_admission` judges devices' selectors and taints, `pod_terms` what pods say of nodes; `cells` are what both can read of a
node, and `node_sets` numbers the sets of nodes that requests are restricted to.
"""
