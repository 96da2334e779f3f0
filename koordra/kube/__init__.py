"""The Kubernetes API, as every process asks it.

kubeconfig       where the server is and how to be let in
client           requests and answers over plain dicts
wire             what is sent: documents, watches, and the Status that says no
watch            a live copy of one kind of object
stuck_event      what a node's program tells of a thread of its own that stands still
wall_clock       the time of day as the API writes it
request_limit    how much this process may ask
"""
