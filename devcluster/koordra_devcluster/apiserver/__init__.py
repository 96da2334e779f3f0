"""The API server of the development cluster (a double: see koordra_devcluster).

http.py ──> routes.py ──> registry.py ──> store.py (sqlite)
               │              ├── metadata.py, strategies.py: defaults and what may change
               │              ├── validation/: what the real server refuses, as field errors
               │              └── patches.py, schema.py: patches, strict decoding
               ├── discovery.py, openapi.py, tables.py: what kubectl asks for
               └── watches.py: streams with bookmarks and 410 Gone
"""
