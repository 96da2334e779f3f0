"""Passes: from what is observed to what is written, for as long as a term of leadership lasts.

leadership          who is active; stops a writer before its lease ends
reconcile_loop      a pass after any change, pause or failure; also for the reconcilers beside the main one
reconciler          one pass, step by step
allocation_step     its planning step: groups that wait, most urgent first
group_queue         the groups that wait, and which of them a pass considers
leader_figures      how things stand after a pass: metrics that the leader alone shows
pod_requeue         pods that their kubelet has given up for a minute
node_evictions      pods that nodes ask to go
conflicts/          what nobody but koordra should do with its devices
"""
