"""What `koordra profiler` does once a minute: the nodes' profiles into the store, TrainingJobs' into their
status, and every five minutes what is recommended into the ConfigMap that claims are given shares by.

A pod's job, template and words are asked for once, while the API still has the pod; of one that is gone the
store may know from before. What cannot be done in one turn is done in the next: nodes keep profiles for a
day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from koordra.api import names
from koordra.api.kinds import TRAINING_JOBS
from koordra.cli.cluster.use.profile.job_status import status_of
from koordra.cli.cluster.use.profile.legacy_settings import legacy_settings
from koordra.cli.cluster.use.profile.nodes import NodeProfiles, of_pod
from koordra.cli.cluster.use.profile.recommendations import Recommendations
from koordra.compat.settings import Settings
from koordra.errors import Conflict, Invalid, InvalidManifest, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable
from koordra.profiles.kept import KeptProfile, kept_of, profiles_of, recommended
from koordra.profiles.profile import JobRef, PodProfile
from koordra.profiles.store import KEPT, ProfileStore

log = get_logger(__name__)

PERIOD: Final = 60.0
AT_ONCE: Final = 200
"""Pods that one turn asks the API server for."""
TOLD: Final = 300
"""Seconds between two writes of one job's status."""
FORGETS: Final = 3600
_CHUNK: Final = 100


@dataclass(slots=True)
class History(Wakeable):
    """`now`: seconds since 1970. Belongs to one thread. Raises ApiError, StoreUnavailable."""

    failed = "profiles_not_kept"

    client: KubeClient
    store: ProfileStore
    now: Callable[[], float]
    was_successful: bool = False
    _known: dict[str, KeptProfile] = field(default_factory=dict)
    """By uid, as it was put last, without its use."""
    _told: dict[JobRef, float] = field(default_factory=dict)
    _annotated: dict[JobRef, str | None] = field(default_factory=dict)
    _due: set[JobRef] = field(default_factory=set)
    _forgot: float = 0.0
    _recommended_at: float = 0.0
    _settings: Settings = field(default_factory=Settings)
    _settings_read: float = 0.0
    _recommendations: Recommendations = field(init=False)

    def __post_init__(self) -> None:
        Wakeable.__init__(self)
        self._recommendations = Recommendations(self.client, self.store)

    def step(self) -> Pause:
        profiles = NodeProfiles(self.client)
        there = self._put(profiles)
        for node, why in sorted(profiles.silent.items()):
            log.warning("node_without_profiles", node=node, why=why)
        if not profiles.silent:  # else its pods may come again
            self._known = {uid: one for uid, one in self._known.items() if uid in there}
        self._read_settings()
        self._tell_jobs()
        if self._recommendations.due and self.now() - self._recommended_at >= TOLD:
            self._recommend()
        if self.now() - self._forgot >= FORGETS:
            self.store.forget(before=round(self.now() - KEPT))
            self._forgot = self.now()
        self.was_successful = True
        return Pause(0.0, PERIOD)

    def _put(self, profiles: Iterable[PodProfile]) -> set[str]:
        """Which pods there are. Profiles are large: a few at a time, and none is kept here."""
        changed, asked, there = list[KeptProfile](), 0, set[str]()
        for profile in profiles:
            there.add(profile.uid)
            known = self._known.get(profile.uid)
            if known is None and asked >= AT_ONCE:
                continue
            if known is None:
                asked += 1
                changed.append(self._first(profile))
            elif known.profile.until < profile.until:
                changed.append(replace(known, profile=profile))
            if len(changed) >= _CHUNK:
                self._write(changed)
                changed = []
        self._write(changed)
        return there

    def _write(self, changed: Sequence[KeptProfile]) -> None:
        self.store.put(changed)
        for one in changed:
            self._known[one.profile.uid] = replace(one, profile=replace(one.profile, summaries={}))
            if one.template:
                self._recommendations.due.add((one.job.namespace, one.template))
            if one.job.kind == TRAINING_JOBS.kind:
                self._due.add(one.job)

    def _read_settings(self) -> None:
        if self.now() - self._settings_read < TOLD:
            return
        try:
            self._settings = legacy_settings(self.client)
        except InvalidManifest as error:
            log.warning("legacy_settings_not_read", why=str(error))
        self._settings_read = self.now()

    def _recommend(self) -> None:
        try:
            self._recommendations.write()
        except NotFound as error:
            log.warning("nothing_recommended", why=str(error))
        self._recommended_at = self.now()

    def _first(self, profile: PodProfile) -> KeptProfile:
        found = of_pod(self.client, profile)
        if found is None:
            before = self.store.of_pod(profile.uid)
            found = kept_of(profile, None, {}) if before is None else replace(before, profile=profile)
        return found

    def _tell_jobs(self) -> None:
        now = self.now()
        for job in sorted(self._due):
            if now - self._told.get(job, 0.0) < TOLD:
                continue
            try:
                self._tell(job)
            except (NotFound, Conflict, Invalid) as error:
                log.info("training_job_not_told", job=f"{job.namespace}/{job.name}", why=str(error))
            self._told[job] = now
            self._due.discard(job)
        self._told = {job: at for job, at in self._told.items() if now - at < FORGETS}
        self._annotated = {job: text for job, text in self._annotated.items() if job in self._told}

    def _tell(self, job: JobRef) -> None:
        own = [one for one in self.store.of_job(job.namespace, job.name) if one.job == job]
        told = [
            (profile, self._recommended(job, profile.template, own, last))
            for profile, last in profiles_of(own)
        ]
        if not told:
            return
        at = datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Of a job that another has followed by the same name nothing is written: its uid is another.
        body = {"metadata": {"uid": job.uid}, "status": {"profile": status_of(told, at=at)}}
        self.client.patch(TRAINING_JOBS, job.name, body, namespace=job.namespace, subresource="status")
        self._annotate(job, told[0][1] or None)

    def _annotate(self, job: JobRef, text: str | None) -> None:
        """By the last of its templates; None takes it away."""
        if self._annotated.get(job, "") != text:
            annotations = {names.RECOMMENDED_SHARE: text}
            body = {"metadata": {"uid": job.uid, "annotations": annotations}}
            self.client.patch(TRAINING_JOBS, job.name, body, namespace=job.namespace)
            self._annotated[job] = text

    def _recommended(self, job: JobRef, template: str, own: Sequence[KeptProfile], last: KeptProfile) -> str:
        same = self.store.of_template(job.namespace, template) if template else own
        found = recommended([profile for profile, _ in profiles_of(same)], last, self._settings)
        return found.text if found else ""
