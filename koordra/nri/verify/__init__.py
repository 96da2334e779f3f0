"""Whether running containers have what they should have.

bundles         what a running container has: OCI spec, device cgroup, network interfaces
drift           that, compared with what was granted (pure)
verification    the loop over all containers of the node
api_reporter    events, conditions and evictions for what it finds
"""
