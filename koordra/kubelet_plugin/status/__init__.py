"""What others see of the node.

claim_status      status.devices of prepared claims
overuse_report    Events and evictions for claims that have more of a card than their share
node_labels       node labels of removed GPU stacks
dump              the node's state in one document, for a bug report
"""
