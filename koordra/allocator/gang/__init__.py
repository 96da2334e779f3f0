"""Gangs: members of one job placed together, all of them (or at least so many) or none.

    from koordra.allocator.gang import Gang, GangNode, Member, place_gang

Pure: the same gang and nodes in any order give the same answer, byte for byte. Reading order: asked (what is asked and answered),
domains (where nodes stand in the fabric), classes (members that ask the same), fitting (what fits on one node), packing (how members
are spread over domains: the score and the proof), place (the way from a gang to its answer), ranking (what members are told).
"""

from koordra.allocator.gang.asked import (
    Fixed,
    Gang,
    GangAnswer,
    GangNode,
    GangPlaced,
    GangScore,
    GangUndecided,
    GangUnsatisfiable,
    Member,
    PlacedMember,
)
from koordra.allocator.gang.fitting import Remembered
from koordra.allocator.gang.place import place_gang
from koordra.allocator.gang.ranking import gang_members

__all__ = [
    "Fixed",
    "Gang",
    "GangAnswer",
    "GangNode",
    "GangPlaced",
    "GangScore",
    "GangUndecided",
    "GangUnsatisfiable",
    "Member",
    "PlacedMember",
    "Remembered",
    "gang_members",
    "place_gang",
]
