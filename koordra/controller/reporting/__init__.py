"""What people and Prometheus see of the controller.

claim_events        what happened to a claim, in words
event_recorder      the same is not reported over and over; Events of the API
metrics             what is counted, and the time from a claim's arrival to its allocation, by part
autoscale_metrics   the new nodes that are asked for
waiting_groups      what waits, by reason and age
capacity            what is allocated and free, kept by the nodes that changed
"""
