"""The machine: what hangs where, how near devices are to each other, and pictures of it.

``levels`` and ``scopes`` answer from published attributes alone and are what the allocator imports.
``shapes`` answers which GPUs and NICs of a node serve a request best.
``machine`` holds the facts of one node as frozen values (``published`` makes them from ResourceSlices,
``overlay`` adds what sysfs does not show), ``graph`` questions them as a networkx graph (imported only
when a graph is built). ``matrix``, ``outline``, ``document``, ``svg`` and ``dot`` show them, with who
holds what from ``usage``. ``presets`` can write a made-up machine that discovery reads like a real one.
"""

from koordra.api.opaque.parameters import Scope
from koordra.topology.levels import Level, level_between, level_label, level_on_paths, parse_level
from koordra.topology.scopes import SCOPES, parse_scope, scope_key, scopes_from, together, worst_level

__all__ = [
    "SCOPES",
    "Level",
    "Scope",
    "level_between",
    "level_label",
    "level_on_paths",
    "parse_level",
    "parse_scope",
    "scope_key",
    "scopes_from",
    "together",
    "worst_level",
]
