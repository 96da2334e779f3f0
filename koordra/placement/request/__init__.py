"""What is asked: `groups` of claims that are placed together, and which of them ask the same (`request_class`); `pod_terms`: what pods
say of nodes; `predicates`: what keeps a group off a node whatever its devices."""
