"""HTTP: routes, watches, tables, discovery, and who asks."""
