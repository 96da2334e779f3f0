"""The learned half of the default policy, `koordra`: what a placement does to the claims that are to come.
The policies' names and which is the default are allocator/score's.

`expected_waste` has the terms, for the search and for comparing nodes; `learned_order` asks them for the
engine, and listens. `mig_placement` says what a cut card is worth, and which of its places to take. What is
known of a workload: `workload` (counts), `workload_table` (what is made of them); `request_models` says which
GPU models a request may run on. `durations` and `departures`: how long claims run, and who goes next.
"""
