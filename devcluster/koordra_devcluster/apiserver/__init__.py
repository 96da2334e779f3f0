"""The API server of the development cluster (a double: see koordra_devcluster).

serving/http ──> serving/routes ──> storage/registry ──> storage/store (sqlite)
                      │                  ├── storage/strategies: what may change; patches, deletion,
                      │                  │   preconditions beside it
                      │                  ├── validation/: what the real server refuses, as field errors
                      │                  ├── access/: RBAC, admission plugins, policies, webhooks
                      │                  └── fields/: strict decoding, defaults
                      └── serving/: discovery, openapi, tables: what kubectl asks for; watches with bookmarks
                          and 410 Gone

resources: the kinds that are served; requests: a request taken apart; status: refusals; server: all of it on
a socket
"""
