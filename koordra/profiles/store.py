"""Where profiles of the past are kept: a database by SQLAlchemy, or what another package has registered.

    sqlite:///profiles.db                      a file
    postgresql+psycopg://user@host/koordra     PostgreSQL, with the extra `postgresql`
    NAME://...                                 an entry point NAME of the group `koordra.profile_store`,
                                               called with the URL

A store keeps one row a pod, replaced whenever more is known of it. What tenants cause is bounded by whoever
writes: MOST_PODS of a job, MOST_JOBS of a namespace, and KEPT seconds; `forget` is told what is too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, runtime_checkable

from koordra.errors import InvalidInput, KoordraError
from koordra.profiles.kept import KeptProfile

ENTRY_POINTS: Final = "koordra.profile_store"
_SQL: Final = ("sqlite", "postgresql")
KEPT: Final = 90 * 86_400
MOST_JOBS: Final = 200
"""Of a namespace; the oldest go first."""
MOST_SAME: Final = 100
"""Pods that what is recommended is worked out of."""
MOST_PODS: Final = 64
"""Of a job; the first are kept."""


@runtime_checkable
class ProfileStore(Protocol):
    """Raises KoordraError where the store does not answer. For one thread."""

    def put(self, kept: Sequence[KeptProfile]) -> None:
        """In place of what is there of these pods, by their uids; all of them or none."""

    def of_pod(self, uid: str) -> KeptProfile | None:
        """The one of that uid."""

    def of_job(self, namespace: str, name: str) -> list[KeptProfile]:
        """Of the jobs of that name, whatever their kind."""

    def of_template(self, namespace: str, template: str) -> list[KeptProfile]:
        """Of the jobs that ran the same: of MOST_SAME pods, the last ones."""

    def forget(self, *, before: int) -> None:
        """Pods that were last seen before then (seconds since 1970), and what is beyond MOST_JOBS and
        MOST_PODS."""


def open_store(url: str) -> ProfileStore:
    """Raises InvalidInput for a URL that nobody knows."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9_.-]*)(?:\+[A-Za-z0-9_]+)?://", url)
    if scheme is None:
        raise InvalidInput(
            "is no URL", object="--store", remedy="sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE"
        )
    if scheme[1] in _SQL:
        return _sql_store(url)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == scheme[1]:
            return _foreign(entry, url)
    raise InvalidInput(
        f"{scheme[1][:40]} is no store that is installed",
        object="--store",
        remedy=f"install the package with the entry point in {ENTRY_POINTS}",
    )


def _foreign(entry: EntryPoint, url: str) -> ProfileStore:
    try:
        made = entry.load()(url)
    except KoordraError:
        raise
    except Exception as error:  # of code that is not ours
        raise InvalidInput(f"{entry.value} cannot be used: {error!r}", object="--store") from error
    if not isinstance(made, ProfileStore):
        raise InvalidInput(f"{entry.value} makes no profile store", object="--store")
    return made


def _sql_store(url: str) -> ProfileStore:
    try:
        made: ProfileStore = import_module("koordra.profiles.sql_store").SqlStore(url)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"needs {error.name}, which is not installed",
            object="--store",
            remedy="pip install 'koordra[profiles]', or 'koordra[postgresql]'",
        ) from error
    return made


def too_many(jobs: Iterable[tuple[str, str, int]]) -> list[str]:
    """Which jobs are beyond MOST_JOBS: of (namespace, uid, when it was last seen)."""
    found, seen = [], dict[str, int]()
    for namespace, uid, _ in sorted(jobs, key=lambda job: (-job[2], job[1])):
        seen[namespace] = seen.get(namespace, 0) + 1
        if seen[namespace] > MOST_JOBS:
            found.append(uid)
    return found
