"""`koordra topology` and `koordra top`; machine_sources is where topology gets a machine from."""
