"""`koordra topology` and `koordra top`; machine_view is what topology shows."""
