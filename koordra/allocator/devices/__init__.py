"""What there is: devices by pool as a node sees them, amounts, parts of cards, NVLink, and which device can
serve which request."""
