"""Commands about one machine: topology (machine_view is what it shows)."""
