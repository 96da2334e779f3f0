"""Gangs: members of one job placed together, all of them (or at least so many) or none.

    from koordra.placement.gang import Gang, GangNode, Member, place_gang

Pure: the same gang and nodes in any order give the same answer, byte for byte. Reading order, every file importing only earlier ones:

    asked       what is asked and answered             climbing    Preferred scopes of several members
    seen        plain objects as what is asked         searching   one node is asked for devices
    classes     members that ask the same              tabled      what nodes say by their tables
    domains     where nodes stand in the fabric        fitting     what fits on one node
    weights     the score as one number                refusals    why a member is on no node
    packing     the score and the proof                scope       where a gang may stand in the fabric
    devices     what a node has                        spreading   how many members go to which node
    seats       the form of a node's answer            room        whether fewer rails could do, by counting
    wholes      tables of whole devices                rails       the same on fewer rails
    remembered  answers that are kept                  ranking     who gets which rank, and what members are told
    predicates  what node predicates refuse            place       the way from a gang to its answer
    kinds       nodes that give one answer
"""

from koordra.placement.gang.place import place_gang
from koordra.placement.gang.rank_assignment import gang_members
from koordra.placement.gang.result_cache import Remembered
from koordra.placement.gang.types import (
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
