"""What people and Prometheus see of the controller.

claim_events        what happened to a claim, in words
event_dedup         the same is not reported over and over
event_recorder      Events of the API
metrics             Prometheus instruments
latency_breakdown   from a claim's arrival to its allocation, by part
"""
