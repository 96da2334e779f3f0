"""What jobs used of GPUs, and what share would have done.

command      `koordra profile`
profiler     `koordra profiler`, the process around `history`
history      the nodes' profiles into a store, TrainingJobs' into their status
nodes        profiles of every node's plugin, with whose they are
from_prometheus   profiles of what a Prometheus has kept
recommendations   by template, for claims that are made
job_status   a TrainingJob's profile in its status. Pure
plots        plots in a terminal, and as SVG. Pure
"""
