"""How well it is foretold when what waits will fit, on the DLRM trace (`KOORDRA_DATA`).

The instances that came while the trace was taken, on a cluster of machines with eight GPUs and two NICs that
is too small for them, so that some wait: those are tried in the order in which they came, after every
departure. Of every EVERY-th that begins to wait it is foretold when it will fit, and compared with when it
did. A service of the trace is a template; who is there at the end has no length that anybody could learn.

    declared   every instance has declared its length, and keeps to it: what is missed are the steps of
               the forecast, and that those who come later take places, too
    learned    from instances of the service that have ended, as the controller learns; nothing is declared
    mean       the same, with the mean of their lengths, as a person would guess

Tried and not taken: the product-limit estimate, in which those that still run count as having lasted so long
(of 5 to 46 % something was said, 0 to 6 % of that within a factor of 2: services of which many run to the
end of the trace seem to last for ever); lengths of all services together where one has too few (all foretold,
2 to 26 % within a factor of 2, nearly all too early).

Departures, their steps, lengths and quantiles are those of `koordra explain --when`; free GPUs and NICs are
counted here in place of the controller's passes.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks._results import data, table, write
from koordra.placement.policy.departures import Departures, spread
from koordra.placement.policy.durations import Durations

GPUS: Final = 8
NICS: Final = (100, 100)
"""Of a machine; of NICs the percent."""
LOADS: Final = (0.9, 0.8, 0.7)
"""GPUs of the cluster, of those that the instances would have in use at most."""
EVERY: Final = 10
MOST_STEPS: Final = 64
"""As in koordra.controller.explain.forecast.later."""


class Instance(NamedTuple):
    """Seconds since the start of the trace. `length`: inf where it outlives it."""

    service: str
    percent: int
    came: float
    length: float


Place = tuple[int, int]
"""A machine, and the NIC there."""


class Cluster:
    def __init__(self, machines: int) -> None:
        self.gpus = [GPUS] * machines
        self.nics = [list(NICS) for _ in range(machines)]

    def copy(self) -> Cluster:
        found = Cluster(0)
        found.gpus, found.nics = list(self.gpus), [list(nics) for nics in self.nics]
        return found

    def take(self, percent: int) -> Place | None:
        """Where least is left: the fullest machine that has room."""
        best: tuple[int, int, int, int] | None = None
        for machine, free in enumerate(self.gpus):
            if not free:
                continue
            for nic, left in enumerate(self.nics[machine]):
                if left >= percent and (best is None or (free, left) < best[:2]):
                    best = free, left, machine, nic
        if best is None:
            return None
        _, _, machine, nic = best
        self.gpus[machine] -= 1
        self.nics[machine][nic] -= percent
        return machine, nic

    def give_back(self, place: Place, percent: int) -> None:
        machine, nic = place
        self.gpus[machine] += 1
        self.nics[machine][nic] += percent


def fitting(cluster: Cluster, queue: Iterable[int], of: Sequence[Instance]) -> dict[int, Place]:
    """Of those that wait, in their order, who fits now; they have their places."""
    found: dict[int, Place] = {}
    least = inf
    for one in queue:
        if of[one].percent >= least:
            continue
        place = cluster.take(of[one].percent)
        if place is None:
            least = of[one].percent  # who asks for as much does not fit either
        else:
            found[one] = place
    return found


Left = Callable[[Instance, float, int], float | None]
"""(instance, seconds for which it has run, number of the question) -> what is left."""


@dataclass(slots=True)
class Replay:
    """`running`: since when and where; `began`: when those that waited did not any more."""

    of: Sequence[Instance]
    cluster: Cluster
    durations: Durations = field(default_factory=Durations)
    lengths: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: dict[int, tuple[float, Place]] = field(default_factory=dict)
    queue: dict[int, None] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    foretold: dict[str, dict[int, float | None]] = field(default_factory=lambda: defaultdict(dict))
    waited: int = 0

    def run(self) -> None:
        ends = Departures[int]()
        for one in sorted(range(len(self.of)), key=lambda one: (self.of[one].came, one)):
            self._until(self.of[one].came, ends)
            self.queue[one] = None
            self._begin(self.of[one].came, ends)
            if one in self.queue:
                self.waited += 1
                if self.waited % EVERY == 0:
                    self._foretell(one, self.of[one].came)
        self._until(inf, ends)

    def _until(self, now: float, ends: Departures[int]) -> None:
        while ends and ends.first <= now:
            at, one = ends.take_one()
            since, place = self.running.pop(one)
            self.cluster.give_back(place, self.of[one].percent)
            self.durations.add(self.of[one].service, at - since)
            self.lengths[self.of[one].service].append(at - since)
            self._begin(at, ends)

    def _begin(self, now: float, ends: Departures[int]) -> None:
        for one, place in fitting(self.cluster, list(self.queue), self.of).items():
            del self.queue[one]
            self.running[one] = now, place
            self.began[one] = now
            if self.of[one].length < inf:
                ends.add(now + self.of[one].length, one)

    def _foretell(self, asked: int, now: float) -> None:
        for name, left in self._ways().items():
            at = self._fits(asked, now, left)
            self.foretold[name][asked] = None if at is None else now + at

    def _ways(self) -> dict[str, Left]:
        def declared(one: Instance, elapsed: float, _number: int) -> float | None:
            return max(0.0, one.length - elapsed) if one.length < inf else None

        def learned(one: Instance, elapsed: float, number: int) -> float | None:
            return self.durations.left(one.service, elapsed, spread(number))

        def mean(one: Instance, elapsed: float, _number: int) -> float | None:
            known = [length for length in self.lengths[one.service] if length > elapsed]
            return statistics.fmean(known) - elapsed if len(known) >= 4 else None

        return {"declared": declared, "learned": learned, "mean": mean}

    def _fits(self, asked: int, now: float, left: Left) -> float | None:
        """In how many seconds."""
        number = 0
        departures = Departures[tuple[int, Place]]()
        cluster, queue = self.cluster.copy(), dict(self.queue)
        for one, (since, place) in sorted(self.running.items()):
            if (rest := left(self.of[one], now - since, number)) is not None:
                departures.add(rest, (one, place))
                number += 1
        for _ in range(MOST_STEPS):
            if not departures:
                return None
            at, gone = departures.take()
            for one, place in gone:
                cluster.give_back(place, self.of[one].percent)
            for one, place in fitting(cluster, list(queue), self.of).items():
                if one == asked:
                    return at
                del queue[one]
                if (rest := left(self.of[one], 0.0, number)) is not None:
                    departures.add(at + rest, (one, place))
                    number += 1
        return None


def read(path: Path) -> list[Instance]:
    found = []
    for row in csv.DictReader(path.open()):
        if not (float(row["gpu_request"] or 0) and row["creation_time"]):
            continue
        came, went = float(row["creation_time"]), row["deletion_time"]
        length = float(went) - came if went else inf
        percent = min(100, round(float(row["rdma_request"] or 0)))
        found.append(Instance(row["app_name"], percent, came, length))
    return found


def most_at_once(of: Sequence[Instance]) -> int:
    changes = sorted([(one.came, 1) for one in of] + [(one.came + one.length, -1) for one in of])
    there = most = 0
    for _, change in changes:
        there += change
        most = max(most, there)
    return most


def errors(replay: Replay, name: str) -> dict[str, Any]:
    """Of waits that ended: how far off in octaves, and in minutes. `foretold`: of how many something was said
    at all; `optimistic`: that came later than was said."""
    ended = {one: at for one, at in replay.foretold[name].items() if one in replay.began}
    pairs = [
        (max(1.0, at - replay.of[one].came), max(1.0, replay.began[one] - replay.of[one].came))
        for one, at in ended.items()
        if at is not None
    ]
    octaves = sorted(abs(log2(said / was)) for said, was in pairs)
    return {
        "asked": len(ended),
        "foretold_pct": _percent(len(pairs), len(ended)),
        "within_factor_2_pct": _percent(sum(one <= 1 for one in octaves), len(octaves)),
        "within_factor_4_pct": _percent(sum(one <= 2 for one in octaves), len(octaves)),
        "median_factor": round(2 ** statistics.median(octaves), 2) if octaves else None,
        "median_error_min": _minutes([abs(said - was) for said, was in pairs]),
        "median_wait_min": _minutes([was for _, was in pairs]),
        "optimistic_pct": _percent(sum(said < was for said, was in pairs), len(pairs)),
    }


def _percent(part: int, of: int) -> float | None:
    return round(100 * part / of, 1) if of else None


def _minutes(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds) / 60, 1) if seconds else None


def measure(of: Sequence[Instance], loads: Sequence[float]) -> list[dict[str, Any]]:
    found = []
    for load in loads:
        machines = round(load * most_at_once(of) / GPUS)
        replay = Replay(of, Cluster(machines))
        replay.run()
        run = {"load": load, "machines": machines, "waited": replay.waited}
        for name in replay.foretold:
            found.append({**run, "forecast": name, **errors(replay, name)})  # noqa: PERF401
    return found


def main() -> None:
    folder = data()
    if folder is None:
        print("skipped: KOORDRA_DATA has no traces")
        return
    found = measure(read(folder / "dlrm-2025" / "disaggregated_DLRM_trace.csv"), LOADS)
    text = _markdown(found)
    write("when", {"runs": found}, text)
    print(text)


def _markdown(found: Sequence[dict[str, Any]]) -> str:
    keys = [key for key in found[0] if key not in ("machines", "asked")]
    rows = [["-" if one[key] is None else one[key] for key in keys] for one in found]
    about = (__doc__ or "").partition("\n")[2].strip()
    return (
        f"# When it will fit, foretold\n\n{about}\n\n{table([key.replace('_', ' ') for key in keys], rows)}\n"
    )


if __name__ == "__main__":
    main()
