"""docs/migrate/keys.md is the table of the code; the table has the names that the dialects read. `--regen`
writes the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.compat.dialect import Dialect
from koordra.compat.dialects import DIALECTS
from koordra.compat.keys import KEYS, Key, Place, Treatment, of_peer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migrate" / "keys.md"
TITLES = {dialect.name: dialect.title for dialect in DIALECTS}
PEERS = list(dict.fromkeys(key.peer for key in KEYS))
ABOVE = """\
# Every name of every peer, and what becomes of it

What `koordra convert` and the webhook do with every name. The page is generated from the table that they use (`koordra/compat/keys`).

- **y**: translated; or read by koordra too; or left as it is, since it is not about devices.
- **warned**: lost, or with another effect; the last column says what to do instead.
- **refused**: not possible here; the object is left out, and the exit code is 2.

Other names under a peer's domain are reported as unknown.

All rows of this page: names and meanings are *read* in the peers' sources; what becomes of them is tested on made-up objects (*double*), for
pods also in a cluster on 1.36.2 (*real*).

"""


def page() -> str:
    return ABOVE + "\n".join(line for peer in PEERS for line in _table(peer)) + "\n"


def _table(peer: str) -> Iterator[str]:
    yield f'<a id="{peer}"></a>\n'
    yield f"## {TITLES.get(peer, peer)}\n"
    counts = {each: sum(key.treatment is each for key in KEYS if key.peer == peer) for each in Treatment}
    yield ", ".join(f"{number} {each}" for each, number in counts.items()) + ".\n"
    yield "| name | where | | what it means | what becomes of it |"
    yield "|---|---|---|---|---|"
    for key in KEYS:
        if key.peer == peer:
            yield f"| `{key.name}` | {key.place} | {key.treatment} | {key.meaning} | {key.becomes} |"
    yield ""


def test_the_page_is_the_table(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regen"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "see pytest --regen"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_table_has_the_names_that_a_dialect_reads(dialect: Dialect) -> None:
    def missing(place: Place, names: tuple[str, ...]) -> set[str]:
        return set(names) - {key.name for key in of_peer(dialect.name, place)}

    assert not missing(Place.RESOURCE, tuple(dialect.resources))
    patterns = {name for name in (*dialect.annotations, *dialect.soft_annotations) if name.endswith("/*")}
    assert (
        not missing(Place.ANNOTATION, (*dialect.annotations, *dialect.written))
        - patterns
        - {"aliyun.com/gpu-*"}
    )
    assert not missing(Place.LABEL, dialect.labels)
    assert not missing(Place.SCHEDULER, tuple(dialect.schedulers))
    assert not missing(Place.ENVIRONMENT, tuple(f"{name}*" for name in dialect.provided_variables)) - {
        "CUDA_DEVICE_MEMORY_LIMIT*"
    }


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_is_taken_out_is_what_schedulers_write(dialect: Dialect) -> None:
    taken_out = {
        key.name
        for key in of_peer(dialect.name, Place.ANNOTATION)
        if key.becomes.startswith("taken out: koordra does not trust")
    }
    assert taken_out == set(dialect.written)


def test_a_row_stands_once() -> None:
    rows = [(key.peer, key.place, key.name) for key in KEYS]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.treatment is Treatment.REFUSED], ids=lambda key: key.name
)
def test_a_refusal_has_a_remedy(key: Key) -> None:
    assert key.problem
    assert key.remedy
