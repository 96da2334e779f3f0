"""What a partial choice costs at least, whatever serves the requests that are still open.

Asked at request boundaries only: there it is known what is chosen and what remains. What remains is summed up
once per position in the search order (`remaining_supply.OpenRequests`), separately for GPUs and for
everything else:

    how many devices at least       rooms and amounts: subset sums of what remains (`packing.py`) against what
                                    is free
    how much at most                so that what the chosen devices leave free is not counted too high
    the least distance              of any GPU that may come to any NIC that may serve it

`score.Cost.bound` makes a cost of it, term by term, never above the cost of any completion (Land and Doig,
"An automatic method of solving discrete programming problems", 1960). Where amounts cannot fit however they
are divided, there is no completion, and the answer is None.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from koordra.allocator.devices.inventory import GPU, NIC, PublishedDevice
from koordra.allocator.joint_allocation import ScopeTracker
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.score import Cost
from koordra.allocator.search.packing import SubsetSums
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.allocator.search.remaining_supply import DeviceTypeDemand, OpenRequests
from koordra.allocator.search.solution import CostPair
from koordra.api.opaque.parameters import Pairing


@dataclass(frozen=True, slots=True)
class _Option:
    """One alternative: how many devices it needs, and what it takes of each that may serve it.

    None: the device is taken as a whole, or (admin access) nothing of it.
    """

    count: int
    takes: Mapping[int, Mapping[str, int] | None]
    admin: bool

    def surely(self, devices: Collection[int]) -> int:
        """How many of these devices it gets at least."""
        return self.count if len(devices) == len(self.takes) else 0


class LowerBound:
    """Bounds for one search; made when the first is asked for.

    Not `usable` where upstream may end with an error on the way, which a branch that is not entered would
    hide: a selector that fails, `All`.
    """

    def __init__(self, search: PartialChoice, cost: Cost) -> None:
        self._state, self._cost = search.state, cost  # not the search, which holds this
        self.usable = not any(
            wanted.takes_all for _, _, request in search.requests for wanted in request.alternatives
        )
        state = search.state
        self._is_gpu = [offered.kind == GPU for offered in state.devices]
        self._is_nic = [offered.kind == NIC for offered in state.devices]
        options = [
            [self._option(search, wanted) for wanted in request.alternatives]
            for _, _, request in search.requests
        ]
        self._nics = frozenset(
            device for found in options for option in found for device in option.takes if self._is_nic[device]
        )
        paired = {
            (claim, index)
            for (claim, index, _), found in zip(search.requests, options, strict=True)
            if any(
                self._is_gpu[device] or self._is_nic[device] for option in found for device in option.takes
            )
        }
        self._pairs_all = [
            tally.rule.pairing is Pairing.PER_DEVICE and paired <= tally.rule.members
            for tally in search.tallies
        ]
        self._tails = self._tails_of(options) if self.usable else []
        self._wastes = self._wastes_of(options, cost)

    def at(self, search: PartialChoice, request: int) -> CostPair | None:
        """The least that any completion costs, when this request is the next to be served; None where there
        is none."""
        tail = self._tails[request]
        devices = dict.fromkeys(placed.device for placed in search.placed)
        gpus = [device for device in devices if self._is_gpu[device]]
        others = [device for device in devices if not self._is_gpu[device]]
        more_gpus = self._further(tail.gpus, gpus)
        if more_gpus is None:
            return None
        missing, nics = self._missing_of_all(search, tail, others), list[PublishedDevice]()
        if len(search.tallies) > 1:
            # What one rule puts to `others` serves the others, too: only now it is known what they lack.
            missing = self._missing_of_all(search, tail, others)
            nics = [search.state.devices[device] for device in others if self._is_nic[device]]
        if None in missing:
            return None
        lacking = 0
        for tally, count, pairs_all in zip(search.tallies, missing, self._pairs_all, strict=True):
            # Further GPUs have to have NICs of their own, too: at least those that no GPU has yet are there
            # for them.
            further = max(0, more_gpus - tally.spare(nics)) if pairs_all and more_gpus else 0
            lacking = max(lacking, (count or 0) + further)
        more_others = self._further(tail.others, others)
        if more_others is None:
            return None
        return self._cost.bound(
            search,
            gpus,
            others,
            tail=tail,
            more_gpus=more_gpus,
            more_others=max(lacking, more_others),
            further_waste=self._wastes[request],
        )

    def _missing_of_all(
        self, search: PartialChoice, tail: OpenRequests, others: list[int]
    ) -> list[int | None]:
        return [self._missing(tally, tail, others) for tally in search.tallies]

    def _missing(self, tally: ScopeTracker, tail: OpenRequests, others: list[int]) -> int | None:
        """How many NICs a JointAllocation still lacks, at least; None where it cannot get them.

        Where a class has no more NICs than it lacks, these are as good as chosen: they are put to `others`.
        """
        if not tally.lacking:
            return 0
        missing, devices = 0, self._state.devices
        for key, count in tally.lacks():
            nics = [
                nic
                for nic in tail.nics
                if devices[nic] not in tally.shares and tally.key(devices[nic]) == key
            ]
            if len(nics) < count:
                return None
            # A NIC that another claim has may serve this one, too.
            new = [nic for nic in nics if nic not in others]
            if len(nics) == count:
                others += new
            else:
                missing += max(0, count - (len(nics) - len(new)))
        return missing

    def _further(self, side: DeviceTypeDemand, chosen: Sequence[int]) -> int | None:
        """How many devices beside the chosen ones are needed at least."""
        needed = 0
        if side.sums:
            state = self._state
            held = [device for device in chosen if device in side.shared]
            free = [device for device in side.shared if device not in chosen]
            for name, sums in side.sums:
                rooms = sorted([state.room(device, name) for device in free], reverse=True)
                count = sums.devices_needed([state.room(device, name) for device in held], rooms)
                if count is None:
                    return None
                needed = max(needed, count)
        return max(needed + side.unshared, side.distinct - len(chosen))

    # --- what remains ---------------------------------------------------------------------------------------

    def _option(self, search: PartialChoice, wanted: RequestAlternative) -> _Option:
        state = search.state
        takes: dict[int, Mapping[str, int] | None] = {}
        for device in search.candidates.get(wanted, range(len(state.devices))):
            self.usable = self.usable and not state.verdict(wanted, device).error
            demand = state.demand(wanted, device)
            if demand is not None:
                shares = state.shared[device] and not wanted.spec.admin_access
                takes[device] = demand.nano if shares else None
        return _Option(wanted.spec.count, takes, wanted.spec.admin_access)

    def _wastes_of(self, requests: Sequence[Sequence[_Option]], cost: Cost) -> list[int]:
        """What each request and all that follow it change the first number of the cluster's cost at least;
        nothing at last."""
        waste, found = cost.waste, [0]
        for options in reversed(requests):
            least = [
                0 if waste is None or option.admin else option.count * waste.least(device, amounts)
                for option in options
                for device, amounts in option.takes.items()
            ]
            found.append(found[-1] + min(least, default=0))
        return found[::-1]

    def _tails_of(self, requests: Sequence[Sequence[_Option]]) -> list[OpenRequests]:
        """What remains from each request on; nothing at last."""
        gpus, others = self._sides(requests, gpus=True), self._sides(requests, gpus=False)
        found = [OpenRequests(gpus[-1], others[-1], False, frozenset(), self._nics)]
        for at, options in reversed(list(enumerate(requests))):
            taken = {device for option in options for device in option.takes}
            surely = all(
                option.takes and option.surely([device for device in option.takes if self._is_nic[device]])
                for option in options
            )
            after = found[-1]
            found.append(
                OpenRequests(
                    gpus[at],
                    others[at],
                    after.brings_nic or surely,
                    after.nics | self._nics & taken,
                    self._nics,
                )
            )
        return found[::-1]

    def _sides(self, requests: Sequence[Sequence[_Option]], *, gpus: bool) -> list[DeviceTypeDemand]:
        """What each request and all that follow it take of GPUs, or of everything else; of none at last."""
        own = [self._share(options, gpus=gpus) for options in requests]
        sums = {
            name: SubsetSums.suffixes(tuple([items.get(name, ()) for _, items in own]))
            for name in sorted({name for _, items in own for name in items})
        }
        found = [DeviceTypeDemand()]
        for at, (share, _) in reversed(list(enumerate(own))):
            left = tuple((name, each[at]) for name, each in sums.items() if each[at].least)
            found.append(found[-1].beside(share, left))
        return found[::-1]

    def _share(
        self, options: Sequence[_Option], *, gpus: bool
    ) -> tuple[DeviceTypeDemand, Mapping[str, tuple[tuple[int, ...], ...]]]:
        """What one request takes of them, and by capacity the amounts that each of its devices may take."""
        own = [
            (option, found)
            for option in options
            if (found := [device for device in option.takes if self._is_gpu[device] == gpus])
        ]
        if not own:
            return DeviceTypeDemand(), {}
        state = self._state
        surely = min(option.surely(found) for option, found in own) if len(own) == len(options) else 0
        alone = not any(option.admin or state.shared[device] for option, found in own for device in found)
        most = max(option.count for option, _ in own)
        takes = [(device, option.takes[device]) for option, found in own for device in found]
        taken = max(state.whole if part is None else state.part(device, part) for device, part in takes)
        items = {}
        for name in {name for _, part in takes for name in part or ()}:
            # What one device's share may take: each of the amounts that are possible; 0 where it may take
            # nothing.
            amounts = tuple(sorted({part.get(name, 0) if part else 0 for _, part in takes}))
            items[name] = (amounts,) * surely + ((0, *amounts),) * (most - surely)
        devices = frozenset(device for device, _ in takes)
        share = DeviceTypeDemand(
            most=most,
            unshared=surely if alone else 0,
            distinct=surely,
            devices=devices,
            shared=frozenset(device for device in devices if state.shared[device]),
            thousandths=most * -(-1000 * taken // state.whole),
            parts=most * taken,
        )
        return share, items
