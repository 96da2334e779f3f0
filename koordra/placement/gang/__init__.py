"""Gangs: members of one job placed together, all of them (or at least so many) or none.

    from koordra.placement.gang import GangRequest, NewMember, place_gang

Pure: the same gang and nodes in any order give the same answer, byte for byte. What a node says is the
engine's word, kept with its request classes; what is gangs' own is how members are spread over the fabric.
Every file imports only earlier ones:

    types                what is asked and answered
    equivalence          members that ask the same, nodes that give one answer
    member_assignment    the form of a node's answer
    node_search          one node is asked for devices
    member_device_sets   tables of whole devices
    node_fit             what fits on one node, by tables or by search
    topology/            where a gang may stand in the fabric, how many members go to which node, and whether
                         fewer rails could do
    rank_assignment      who gets which rank, and what members are told
    place                the way from a gang to its answer
    kept_seats           members that come back to what was held for them
    role_minimums        so many members of each role
"""

from koordra.placement.gang.kept_seats import KeptSeat, place_in_seats
from koordra.placement.gang.place import place_gang
from koordra.placement.gang.rank_assignment import gang_members, gpus_of
from koordra.placement.gang.role_minimums import devices_asked, with_least_of_each
from koordra.placement.gang.topology.homes import homes_of
from koordra.placement.gang.types import (
    Fixed,
    GangAnswer,
    GangPlaced,
    GangRequest,
    GangScore,
    GangUndecided,
    GangUnplaced,
    GangUnsatisfiable,
    LeastOf,
    NewMember,
    Part,
    PlacedMember,
    Slices,
)

__all__ = [
    "Fixed",
    "GangAnswer",
    "GangPlaced",
    "GangRequest",
    "GangScore",
    "GangUndecided",
    "GangUnplaced",
    "GangUnsatisfiable",
    "KeptSeat",
    "LeastOf",
    "NewMember",
    "Part",
    "PlacedMember",
    "Slices",
    "devices_asked",
    "gang_members",
    "gpus_of",
    "homes_of",
    "place_gang",
    "place_in_seats",
    "with_least_of_each",
]
