"""The learned policy: what a placement does to the claims that are to come.

`expected_waste` has the terms, for the search and for comparing nodes; `learned_order` asks them for the engine, and listens.
What is known of a workload: `workload` (counts), `workload_table` (what was made of them), `workload_learning` (how);
`request_models` says which GPU models a request may run on.
"""
