"""What others see of the node.

health            the health of every device, and the feed of its changes
claim_status      status.devices of prepared claims
node_labels       node labels of removed GPU stacks
plugin_metrics    the plugin's metrics
dump              the node's state in one document, for a bug report
"""
