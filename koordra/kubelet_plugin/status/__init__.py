"""What others see of the node.

claim_status      status.devices of prepared claims
node_labels       node labels of removed GPU stacks
dump              the node's state in one document, for a bug report
"""
