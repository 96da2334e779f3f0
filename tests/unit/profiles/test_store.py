"""Every store keeps the same: SQLite, a real PostgreSQL, and MongoDB as another package would bring it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import InvalidInput, StoreUnavailable
from koordra.profiles.kept import KeptProfile, kept_of, profiles_of
from koordra.profiles.profile import JobRef, PodProfile
from koordra.profiles.series import Series
from koordra.profiles.store import MOST_JOBS, MOST_PODS, MOST_SAME, ProfileStore, open_store
from koordra.profiles.summary import Summary
from tests.unit.docs.worked_examples import worked_example
from tests.unit.profiles import mongo
from tests.unit.profiles.postgresql import postgresql, programs

ENTRY_POINT = (
    "[koordra.profile_store]\nmongodb = koordra_mongodb:MongoStore\nbroken = koordra_mongodb:PyMongoError\n"
)
START = 1_700_000_000


@pytest.fixture
def mongodb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worked example, as pip would have installed it, and a double of its driver."""
    site = tmp_path / "site-packages"
    (site / "koordra_mongodb-1.dist-info").mkdir(parents=True)
    (site / "koordra_mongodb-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINT)
    (site / "koordra_mongodb-1.dist-info" / "METADATA").write_text("Name: koordra-mongodb\nVersion: 1\n")
    (site / "koordra_mongodb.py").write_text(worked_example("A store of profiles", "python"))
    monkeypatch.syspath_prepend(site)
    for name, module in mongo.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield
    sys.modules.pop("koordra_mongodb", None)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long), "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'profiles.db'}"
    elif request.param == "mongodb":
        request.getfixturevalue("mongodb")
        yield "mongodb://localhost/koordra"
    else:
        binaries = programs()
        if binaries is None:
            pytest.skip("this machine has no PostgreSQL")
        with postgresql(binaries) as made:
            yield made


@pytest.fixture
def store(url: str) -> ProfileStore:
    return open_store(url)


def summary(value: int) -> Summary:
    found = Summary()
    for number in range(200):
        found.add((START + 5 * number) * 1000, 5000, value + number)
    return found


def kept(
    pod: str,
    *,
    job: str = "train",
    template: str = "t1",
    at: int = START,
    value: int = 1,
    place: str = "team",
) -> KeptProfile:
    profile = PodProfile(
        place, pod, f"uid-{place}-{pod}", "n1", at, at + 1000, {Series.SM: summary(value)}, 80
    )
    asked = {"metadata": {"annotations": {"koordra.io/asked": "é.$x"}}, "spec": {"containers": []}}
    return KeptProfile(
        JobRef(place, "Job", job, f"uid-{place}-{job}"),
        template,
        profile,
        asked,
        {"c": {"devices": {"a.b": 1}}},
    )


def pods(found: list[KeptProfile]) -> list[str]:
    return sorted(one.profile.pod for one in found)


def test_what_is_put_is_found_by_job_and_by_template(store: ProfileStore) -> None:
    first, other, elsewhere = kept("train-0"), kept("again-0", job="again"), kept("train-0", place="others")
    store.put([first, other, elsewhere])
    assert store.of_job("team", "train") == [first]
    assert store.of_job("others", "train") == [elsewhere]
    assert pods(store.of_template("team", "t1")) == ["again-0", "train-0"]
    assert store.of_template("team", "t2") == []
    assert store.of_job("team", "' OR 1=1 --") == []


def test_a_pod_of_which_more_is_known_is_replaced(store: ProfileStore) -> None:
    store.put([kept("train-0", value=1)])
    store.put([kept("train-0", value=500), kept("train-1")])
    store.put([])
    found = {one.profile.pod: one for one in store.of_job("team", "train")}
    assert found["train-0"] == kept("train-0", value=500)
    assert len(found) == 2


def test_what_is_old_or_too_much_is_forgotten(store: ProfileStore) -> None:
    store.put([kept(f"big-{number:03d}", job="big", at=START + number) for number in range(MOST_PODS + 5)])
    store.put(
        [kept(f"p-{number}", job=f"job-{number}", at=START + 100 + number) for number in range(MOST_JOBS)]
    )
    store.put([kept("quiet", job="quiet", place="others", at=START + 1)])
    store.forget(before=START + 1000)
    assert pods(store.of_job("team", "big")) == [], "of a namespace the oldest job goes"
    same = store.of_template("team", "t1")
    assert [one.job.name for one in same] == [f"job-{MOST_JOBS - 1 - number}" for number in range(MOST_SAME)]
    assert store.of_job("team", "job-0")
    assert pods(store.of_job("others", "quiet")) == ["quiet"]
    store.forget(before=START + 1100 + MOST_JOBS // 2)
    assert [
        bool(store.of_job("team", f"job-{number}")) for number in (0, MOST_JOBS // 2 - 1, MOST_JOBS // 2)
    ] == [False, False, True]
    assert store.of_job("others", "quiet") == []


def test_of_a_job_of_very_many_pods_the_first_are_kept(store: ProfileStore) -> None:
    store.put([kept(f"big-{number:03d}", job="big", at=START + number) for number in range(MOST_PODS + 5)])
    store.forget(before=0)
    assert pods(store.of_job("team", "big")) == [f"big-{number:03d}" for number in range(MOST_PODS)]


def test_it_is_there_after_a_restart(url: str) -> None:
    if url.startswith("mongodb"):
        pytest.skip("the double is in memory")
    open_store(url).put([kept("train-0")])
    assert open_store(url).of_job("team", "train") == [kept("train-0")]


def test_a_silent_mongodb_is_told_as_one(mongodb: None) -> None:
    made: Any = open_store("mongodb://localhost/koordra")
    made._pods.silent = True
    for ask in (lambda: made.put([kept("a")]), lambda: made.of_job("a", "b"), lambda: made.forget(before=1)):
        with pytest.raises(StoreUnavailable, match="no server answers"):
            ask()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("profiles.db", "is no URL"),
        ("", "is no URL"),
        ("mysql://localhost/x", "mysql is no store that is installed"),
        ("broken://x", "makes no profile store"),
        ("mongodb:/", "is no URL"),
        ("mongodb+x://", "koordra_mongodb:MongoStore cannot be used: AssertionError"),
    ],
)
def test_a_url_that_is_none_is_refused(mongodb: None, url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nonexistent/x.db",
        "postgresql+psycopg://koordra:secret@/x?host=/nonexistent",
        "postgresql://[",
    ],
)
def test_a_database_that_does_not_answer_is_told_without_its_password(url: str) -> None:
    with pytest.raises((StoreUnavailable, InvalidInput)) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_database_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 100)
    with pytest.raises(StoreUnavailable, match="file is not a database"):
        open_store(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_row_that_somebody_garbled_is_told(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'x.db'}")
    store.put([kept("train-0")])
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("UPDATE koordra_pod_profiles SET document = '{}'")
    database.close()
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        store.of_job("team", "train")


def test_a_pod_is_kept_with_what_it_asked_and_whose_it_is() -> None:
    profile = PodProfile("team", "p", "u", "n1", START, START + 1)
    pod = {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "annotations": {"a": "b"},
            "ownerReferences": [{"kind": "Job", "name": "j", "uid": "ju", "controller": True}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "a", "image": "i", "resources": {"limits": {"x": "1"}}}],
        },
    }
    found = kept_of(profile, pod, {"c": {}})
    assert found.job == JobRef("team", "Job", "j", "ju")
    assert found.asked["spec"] == {"containers": [{"name": "a", "resources": {"limits": {"x": "1"}}}]}
    large = {**pod, "metadata": {**pod["metadata"], "annotations": {"koordra.io/asked": "b" * (1 << 15)}}}
    assert kept_of(profile, large, {}).asked == {}
    for gone in (None, {**pod, "metadata": {**pod["metadata"], "uid": "another"}}):
        assert kept_of(profile, gone, {}) == KeptProfile(JobRef("team", "Pod", "p", "u"), "", profile)


def test_profiles_are_those_of_one_job_and_one_template() -> None:
    given = [
        kept("a-0"),
        kept("a-1", at=START + 50),
        kept("l", template="t2"),
        kept("b-0", job="b", at=START + 900),
    ]
    found = [
        (one.job.name, one.template, [pod.pod for pod in one.pods], last.profile.pod)
        for one, last in profiles_of(given)
    ]
    assert found == [
        ("b", "t1", ["b-0"], "b-0"),
        ("train", "t1", ["a-0", "a-1"], "a-1"),
        ("train", "t2", ["l"], "l"),
    ]
