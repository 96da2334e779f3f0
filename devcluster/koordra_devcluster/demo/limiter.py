"""The memory limiter, where what is shown needs it: shares whose memory is limited are given only by nodes
that have its libraries."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.compat.manifests import LegacyPods
from koordra.errors import ClusterError, InvalidInput
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra_devcluster.demo import manifests


def wants_limiter(documents: Iterable[Object]) -> bool:
    """Whether some claim, class or legacy pod asks for a share with a memory limit."""
    return any(_names(one) for document in documents for one in _translated(document))


def _translated(document: Object) -> Iterable[Object]:
    try:
        return LegacyPods().translate(document, Notes.about(document))
    except InvalidInput:
        return (document,)


def _names(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("isolation") == LimiterIsolation.name or any(map(_names, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_names, value))


def is_built() -> bool:
    return LimiterIsolation(Path()).unavailable is None


def build() -> None:
    """Build the libraries in a checkout; they are there afterwards. Raises InvalidInput where they cannot be
    built."""
    source = manifests.deploy_folder().parent / "native"
    if not (source / "Makefile").is_file() or not all(map(shutil.which, ("make", "cc"))):
        raise InvalidInput(
            "these shares have a memory limit, and koordra's memory limiter is not built here",
            remedy="run the demo in a checkout of koordra, with make and a C compiler",
        )
    done = subprocess.run(
        ["make", "-s", "-C", str(source), "all"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not is_built():
        raise ClusterError(f"the memory limiter was not built (make -C {source}):\n{done.stderr[-2000:]}")
