"""What was learned of the workload, as an order of nodes: `learned_order` keeps it, `node_ranking` computes it."""
