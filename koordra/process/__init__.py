"""A long-running process and its threads.

lifecycle         how it starts and ends; no thread ends unseen
progress          the steps that a thread makes
watchdog          whether threads make them
metrics_server    /metrics, /healthz and /readyz
wakeable          work that is done at every wake, in a thread of its own
backoff           how long a loop waits after a failure
connections       how many connections of strangers a server holds, and for how long
"""
