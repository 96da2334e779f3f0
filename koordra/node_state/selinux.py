"""SELinux types of what containers get of the node's own files.

A confined container may read and write what has the type container_file_t, of its own categories or of none.
Below the kubelet's directory everything has container_var_lib_t, which it may not even read
(containers/container-selinux, container.fc), so what is mounted into containers is labelled when it is made.
What the CDI hook writes needs nothing: it lies on the container's own file system, whose label it has.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

ATTRIBUTE: Final = "security.selinux"
LABEL: Final = b"system_u:object_r:container_file_t:s0\0"
"""Without categories, which every container's dominate."""


def give_to_containers(folder: Path) -> None:
    """Label the folder and everything in it that has another type; nothing on a node without SELinux. Raises
    OSError."""
    if _label(folder) is None:
        return
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            if (_label(path) or b"").split(b":")[2:3] != LABEL.split(b":")[2:3]:
                os.setxattr(path, ATTRIBUTE, LABEL, follow_symlinks=False)


def _label(path: Path) -> bytes | None:
    try:
        return os.getxattr(path, ATTRIBUTE, follow_symlinks=False)
    except OSError:
        return None
