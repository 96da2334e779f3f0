"""What a controller learns and keeps: the table of the workload (placement/policy/learned_order makes it) and
how long claims ran (`claim_durations`), in a ConfigMap (`leftover_store`)."""
