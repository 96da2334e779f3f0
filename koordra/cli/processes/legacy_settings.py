"""The file behind `--legacy-settings`: the forms that `koordra convert --settings` takes, a directory of them too.

A mounted ConfigMap is a directory with a file for each key; every file that ends in .yaml is read, in the order of names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordra.controller.legacy.settings import LegacySettings


def read_legacy_settings(place: str | None, *, grace: float) -> LegacySettings:
    """Raises InvalidManifest."""
    from koordra.cli.manifests.convert import settings_from
    from koordra.controller.legacy.settings import LegacySettings, in_a_cluster

    files = [place] if place else []
    if place and Path(place).is_dir():
        files = sorted(str(path) for path in Path(place).glob("*.yaml"))
    return LegacySettings(in_a_cluster(settings_from(files, None, ())), grace)
