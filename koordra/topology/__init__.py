"""The machine: what hangs where, how near devices are to each other, and pictures of it.

``levels``               how near two devices are, from published attributes alone: what the allocator imports
``machine``              the facts of one node as frozen values; ``location`` where a device is
``partitions``           MIG instances and sub-functions of a device, and the NVLink fabric of a GPU
``problems``             what a reading of a machine gives: the machine, and what it could not resolve
``published``            a machine from ResourceSlices; ``overlay`` adds what sysfs does not show
``cpu_lists``            CPUs as the kernel lists them
``fabrics``              NVLink domains and rails, and how NVLink is published
``product_names``        names and versions as they are published
``graph``                the machine as a networkx graph (imported only by pictures)
``machine_shape``        what nodes of one kind have in common: counts, classes of nearness, NVLink
``network_topology``     where a node stands between the others: zone, core, spine, block, NVLink domain
``pictures``             a machine or a placed job as text, matrix, document, SVG and Graphviz
``presets``              made-up machines, written so that discovery reads them like real ones
"""

from koordra.api.opaque.parameters import Scope
from koordra.topology.levels import Level, level_between, scope_key, together

__all__ = ["Level", "Scope", "level_between", "scope_key", "together"]
