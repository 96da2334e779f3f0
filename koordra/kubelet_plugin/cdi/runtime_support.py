"""What the node's container runtime understands of CDI.

A runtime refuses a whole spec file whose version it does not know, and the container with it ("unresolvable
CDI devices"). So a spec has exactly the version that its fields need, and a field that only newer runtimes
know is left out on an older one. There is one such field: `additionalGids`, of CDI 0.7. NVIDIA's toolkit
writes it for every card with DRM nodes since 1.19.1, with which older podman and containerd no longer start a
container (nvidia-container-toolkit #1860, #1940).

koordra can leave it out because every node of a container is made with mode 0666: whoever is in the container
may open it, root or not, and holds the claim. The groups are for runtimes that cannot make nodes and bind the
host's (a node that itself runs in a user namespace), whose modes and groups then count.

containerd has known 0.7 since 2.0, and so have later builds of 1.7; Debian's 1.7 does not know 0.6, so no 1.7
is asked. CRI-O 1.29 was built with CDI 0.6.2, 1.30 with 0.7.2 (its go.mod), and adds the groups to those of
the pod's user; its version is that of Kubernetes.
"""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(r"([a-z-]+)://v?([0-9]+)\.([0-9]+)")
_ADDITIONAL_GIDS_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 30)}


def takes_additional_gids(runtime: str) -> bool:
    """Of a runtime as the kubelet names it, `containerd://2.1.4`; not of one that is not known."""
    read = _VERSION.match(runtime)
    since = _ADDITIONAL_GIDS_SINCE.get(read[1]) if read else None
    return read is not None and since is not None and (int(read[2]), int(read[3])) >= since
