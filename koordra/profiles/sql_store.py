"""Profiles in a database that SQLAlchemy speaks: SQLite, PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from koordra.errors import StoreUnavailable
from koordra.profiles.kept import KeptProfile, kept_document, read_kept
from koordra.profiles.store import MOST_PODS, MOST_SAME, too_many

_NAME: Final = 253
"""Characters of a name in Kubernetes."""
_METADATA: Final = sql.MetaData()
PODS: Final = sql.Table(
    "koordra_pod_profiles",
    _METADATA,
    sql.Column("uid", sql.String(_NAME), primary_key=True),
    sql.Column("namespace", sql.String(_NAME), nullable=False),
    sql.Column("kind", sql.String(_NAME), nullable=False),
    sql.Column("job", sql.String(_NAME), nullable=False),
    sql.Column("job_uid", sql.String(_NAME), nullable=False),
    sql.Column("template", sql.String(64), nullable=False),
    sql.Column("began", sql.BigInteger, nullable=False),
    sql.Column("until", sql.BigInteger, nullable=False),
    sql.Column("document", sql.Text, nullable=False),
    sql.Index("koordra_pod_profiles_job", "namespace", "job"),
    sql.Index("koordra_pod_profiles_template", "namespace", "template"),
)


class SqlStore:
    """`url`: as SQLAlchemy reads it; the table is made where it is not there."""

    def __init__(self, url: str) -> None:
        with _told("--store"):
            self._engine = sql.create_engine(url, poolclass=NullPool)
            _METADATA.create_all(self._engine)

    def put(self, kept: Sequence[KeptProfile]) -> None:
        rows = {one.profile.uid: _row(one) for one in kept if one.profile.uid}
        if not rows:
            return
        with _told("store"), self._engine.begin() as connection:
            connection.execute(sql.delete(PODS).where(PODS.c.uid.in_(list(rows))))
            connection.execute(sql.insert(PODS), list(rows.values()))

    def of_pod(self, uid: str) -> KeptProfile | None:
        return next(iter(self._read(PODS.c.uid == uid)), None)

    def of_job(self, namespace: str, name: str) -> list[KeptProfile]:
        return self._read((PODS.c.namespace == namespace) & (PODS.c.job == name))

    def of_template(self, namespace: str, template: str) -> list[KeptProfile]:
        return self._read((PODS.c.namespace == namespace) & (PODS.c.template == template), most=MOST_SAME)

    def forget(self, *, before: int) -> None:
        with _told("store"), self._engine.begin() as connection:
            connection.execute(sql.delete(PODS).where(PODS.c.until < before))
            last = sql.func.max(PODS.c.until)
            jobs = sql.select(PODS.c.namespace, PODS.c.job_uid, last).group_by(
                PODS.c.namespace, PODS.c.job_uid
            )
            gone = too_many((place, uid, until) for place, uid, until in connection.execute(jobs))
            for uid in gone:
                connection.execute(sql.delete(PODS).where(PODS.c.job_uid == uid))
            rank = sql.func.row_number().over(
                partition_by=PODS.c.job_uid, order_by=(PODS.c.began, PODS.c.uid)
            )
            ranked = sql.select(PODS.c.uid, rank.label("rank")).subquery()
            beyond = sql.select(ranked.c.uid).where(ranked.c.rank > MOST_PODS)
            connection.execute(sql.delete(PODS).where(PODS.c.uid.in_(beyond)))

    def _read(self, where: sql.ColumnElement[bool], *, most: int | None = None) -> list[KeptProfile]:
        with _told("store"), self._engine.connect() as connection:
            found = connection.execute(
                sql.select(PODS.c.document).where(where).order_by(PODS.c.until.desc(), PODS.c.uid).limit(most)
            )
            return [read_kept(json.loads(text)) for text in found.scalars()]


def _row(kept: KeptProfile) -> dict[str, Any]:
    profile, job = kept.profile, kept.job
    return {
        "uid": profile.uid,
        "namespace": job.namespace,
        "kind": job.kind,
        "job": job.name,
        "job_uid": job.uid,
        "template": kept.template,
        "began": profile.began,
        "until": profile.until,
        "document": json.dumps(kept_document(kept), separators=(",", ":")),
    }


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What a database, its driver or a row has raised, without the URL, which may hold a password."""
    try:
        yield
    except (SQLAlchemyError, ValueError, TypeError, KeyError) as error:
        kind = type(error).__name__
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        told = f"{what}: profiles cannot be read or written ({kind}): {reason}"
        raise StoreUnavailable(told) from error
