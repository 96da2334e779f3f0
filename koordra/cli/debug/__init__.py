"""`koordra debug`: the group with dump (command), and leftover_table."""
