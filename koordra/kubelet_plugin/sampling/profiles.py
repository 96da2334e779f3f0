"""What each pod with devices used over its life: its profile, made of the node's samples.

    <state>/profiles.json    koordra.io/profiles/v1: every pod's summaries, written every SAVED seconds

A plugin that starts again goes on with them; killed, it has lost what was since the last write. A pod that
has ended is kept for ENDED seconds, for whoever collects profiles (`koordra profiler`), and so many of them
that all together stay below MOST: where there are more, the oldest of the namespace that has most goes first,
so that nobody's many short pods drive out another's. What is kept of one pod is bounded by what a summary is.

The document is served as it was written last (`text`), so asking for it costs nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordra.kubelet_plugin.sampling.pod_use import PodKey, Values, pod_use
from koordra.kubelet_plugin.sampling.sample import RecentSamples, Sample
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import load
from koordra.process.wakeable import Pause, Wakeable
from koordra.profiles.profile import PodProfile, pod_document, read_pod
from koordra.profiles.summary import Summary

log = get_logger(__name__)

FILE: Final = "profiles.json"
SCHEMA: Final = "koordra.io/profiles/v1"
LOOKS: Final = 15.0
SAVED: Final = 60.0
ENDED: Final = 86_400
MOST: Final = 256
"""Pods, each of some 8 KiB, and 45 KiB at most; the kubelet runs 110 at once."""
LONGEST: Final = 300.0
"""Seconds that one pair of samples stands for at most."""


@dataclass(slots=True)
class Recording:
    """Profiles of one node's pods, by their keys. Belongs to one thread."""

    node: str
    pods: dict[PodKey, PodProfile] = field(default_factory=dict)
    _before: Sample | None = None

    def take(self, sample: Sample, *, at: int) -> None:
        """`at`: when it was taken, in milliseconds since 1970."""
        before, self._before = self._before, sample
        if before is None:
            return
        ms = round(min(sample.at - before.at, LONGEST) * 1000)
        cards = _cards(sample)
        for key, values in pod_use(before, sample).items():
            self._add(key, values, at=at, ms=ms, card=cards.get(key[:2], 0))
        self._forget(at // 1000)

    def _add(self, key: PodKey, values: Values, *, at: int, ms: int, card: int) -> None:
        known = self.pods.get(key) or PodProfile(*key, self.node, (at - ms) // 1000, at // 1000)
        summaries = {**known.summaries}
        for series, value in values.items():
            summaries.setdefault(series, Summary(series.resolution)).add(at, ms, value)
        until = max(known.until, at // 1000)
        largest = max(known.card, card)
        self.pods[key] = PodProfile(*key, self.node, known.began, until, summaries, largest)

    def _forget(self, now: int) -> None:
        self.pods = {key: each for key, each in self.pods.items() if abs(now - each.until) <= ENDED}
        while len(self.pods) > MOST:
            most = Counter(key.namespace for key in self.pods).most_common(1)[0][0]
            own = [key for key in self.pods if key.namespace == most]
            del self.pods[min(own, key=lambda key: (self.pods[key].until, key))]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "node": self.node,
            "pods": [pod_document(each) for each in self.pods.values()],
        }


def _cards(sample: Sample) -> dict[tuple[str, str], int]:
    found = dict[tuple[str, str], int]()
    for name, uuid in sample.of_containers:
        found[name[:2]] = max(found.get(name[:2], 0), sample.sizes.get(uuid, 0))
    return found


def read_recording(document: Any, node: str) -> Recording:
    """Raises ValueError, TypeError, KeyError or AttributeError for what is none."""
    if not isinstance(document, Mapping) or document["schema"] != SCHEMA:
        raise ValueError("another schema")
    pods = [read_pod(each) for each in document["pods"]]
    return Recording(node, {PodKey(each.namespace, each.pod, each.uid): each for each in pods})


class ProfileRecorder(Wakeable):
    """`wall`: seconds since 1970; `clock`: that of the samples. `text` is for any thread."""

    failed = "profiles_not_recorded"

    def __init__(
        self,
        state: Path,
        *,
        node: str,
        samples: RecentSamples,
        disk: Disk,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._path, self._node, self._samples, self._disk = state / FILE, node, samples, disk
        self._clock, self._wall = clock, wall
        self._recording: Recording | None = None
        self._taken = self._saved_at = -1.0
        self._text, self._written = json.dumps(Recording(node).document), ""

    def text(self) -> str:
        return self._text

    def step(self) -> Pause:
        recording = self._recording = self._recording or self._load()
        now, wall = self._clock(), self._wall()
        for sample in self._samples.since(self._taken):
            recording.take(sample, at=round((wall - (now - sample.at)) * 1000))
            self._taken = sample.at
        if now - self._saved_at >= SAVED or self._saved_at < 0:
            self._save(recording)
            self._saved_at = now
        return Pause(0.0, LOOKS)

    def _load(self) -> Recording:
        try:
            data = self._disk.read(self._path)
            return Recording(self._node) if data is None else read_recording(load(data), self._node)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            # Use of the past is worth no more than that: what runs is measured from here on.
            log.warning("profiles_unreadable", path=str(self._path), error=str(error))
            return Recording(self._node)

    def _save(self, recording: Recording) -> None:
        """What is served is new also where the disk is full."""
        self._text = text = json.dumps(recording.document, separators=(",", ":"))
        if text != self._written:
            self._disk.replace(self._path, text.encode(), mode=0o600)
            self._written = text
