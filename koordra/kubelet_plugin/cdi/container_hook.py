"""The arguments of native/cdi-hook, which makes a container's loader find the driver, and NCCL what is said
of its NICs' network. Pure.

    koordra-cdi-hook container --folder F... --link TARGET::PATH... --compat HOST_VERSION --limiter FOLDER
                               --preloaded FILE --fabric FOLDER

It writes links, ld.so.cache, ld.so.preload and nccl.conf into the container's root before the container
starts, where they only tell what the runtime has mounted. `--limiter` and `--fabric` are always there: the
hook sees what is mounted in this very container, of whatever claim. `--preloaded` is there with HAMi's
library, which the loader of musl would pass over without a word.

Mounting the libraries is not enough. Triton asks `/sbin/ldconfig -p`, which reads nothing but the cache, and
an entry of the image's own cache, or of its glibc-hwcaps folders, comes before any default folder. They stay
mounted in the default folders all the same: linkers look there (`-lcuda`), programs with a loader of their
own (Nix), who tests for the file, and containers of a node where the hook cannot run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Hook
from koordra.kubelet_plugin.isolation.hami_core import FOLDER, LIBRARY
from koordra.kubelet_plugin.isolation.limiter.backend import DRIVER_FOLDER, LIMITER_FOLDER
from koordra.kubelet_plugin.network.fabric_files import IN_CONTAINER, for_nccl

_LIBRARY: Final = re.compile(r"lib[^/]*\.so(?:\.[0-9.]*)?")


def container_hook(path: str, edits: Sequence[ContainerEdits], *, driver_version: str | None) -> Hook | None:
    """The hook of a claim whose devices have these edits; None where they bring no library and
    nothing for NCCL. `path` is that of the program, on the host."""
    libraries = sorted({library for each in edits for library in _libraries(each)})
    preloaded = any(mount.container_path == LIBRARY for each in edits for mount in each.mounts)
    if not libraries and not preloaded and not for_nccl(edits):
        return None
    arguments = ["koordra-cdi-hook", "container"]
    named = (folder for each in edits for folder in each.library_folders)
    for folder in dict.fromkeys((*(folder for folder, _ in libraries), *named)):
        arguments += ["--folder", folder]
    links = {link.path: link.target for each in edits for link in each.links}
    for link, target in sorted(links.items()):
        arguments += ["--link", f"{target}::{link}"]
    if libraries and driver_version:
        arguments += ["--compat", driver_version]
    arguments += ["--limiter", LIMITER_FOLDER]
    arguments += ["--preloaded", LIBRARY] if preloaded else []
    arguments += ["--fabric", IN_CONTAINER]
    return Hook("createContainer", path, tuple(arguments))


def _libraries(edits: ContainerEdits) -> Iterator[tuple[str, str]]:
    """Folder and name of the driver's; what stands behind the limiter is for the limiter alone, and HAMi's is
    found by its path."""
    for mount in edits.mounts:
        folder, _, name = mount.container_path.rpartition("/")
        if _LIBRARY.fullmatch(name) and folder not in (DRIVER_FOLDER, FOLDER):
            yield folder, name
