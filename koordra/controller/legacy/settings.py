"""What an operator may say about legacy pods in the cluster, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from koordra.api import names
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings

OPT_OUT: Final = names.DOMAIN + "legacy-pods"
"""Label on a pod or namespace; `ignore`: left as it is."""
IGNORE: Final = "ignore"

GRACE: Final = 600.0


@dataclass(frozen=True, slots=True)
class LegacySettings:
    """`grace`: seconds for which a template outlives its last use."""

    compat: Settings = field(default_factory=Settings)
    grace: float = GRACE


def in_a_cluster(settings: Settings) -> Settings:
    """What is not said, as it is for a cluster whose other stacks are gone: pods that name their schedulers
    go to the default one. Device plugins of NICs go on, unless the settings name them."""
    stacks = tuple(name for dialect in DIALECTS for name in dialect.schedulers)
    return replace(
        settings,
        schedulers=stacks if settings.schedulers is None else settings.schedulers,
        nics=settings.nics or {},
    )
