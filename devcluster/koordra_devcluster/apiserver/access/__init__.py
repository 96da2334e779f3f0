"""Who may do what to which object: RBAC, admission plugins, policies and webhooks."""
