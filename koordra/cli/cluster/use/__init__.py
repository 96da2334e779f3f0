"""What is used of a cluster's GPUs and NICs, whoever allocated them.

top               asked against used, by pod and claim, now
usage             GPU-hours by namespace
readings          the series that both read
plugin_readings   those of every node's plugin, through the API server
prometheus        those of a Prometheus
profile/          what jobs used over their lives, and what share would have done
"""
