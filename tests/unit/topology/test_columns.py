"""Tables keep to a width: they wrap at blanks, then words lose their middle; wide ones say everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.topology.pictures.columns import LEAST, table

WORDS = st.text("abcdefghij-", min_size=1, max_size=40)
CELLS = st.lists(st.lists(WORDS, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=3)
TABLES = st.integers(1, 5).flatmap(
    lambda columns: st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=1, max_size=5)
)


@given(TABLES)
def test_nothing_is_wider_than_the_width_and_a_wide_table_says_everything(
    rows: list[list[list[str]]],
) -> None:
    narrow = table(rows, width=80, shortened=True)
    assert max(map(len, narrow.splitlines())) <= 80
    words = [word for row in rows for cell in row for line in cell for word in line.split()]
    wide = table(rows).split()
    assert sorted(wide) == sorted(words)
    whole = table(rows, width=80).split()
    assert sorted(whole) == sorted(words), "without shortening no word is changed"


def test_what_fits_is_left_alone() -> None:
    rows = [[["A"], ["B"]], [["one"], ["two words"]]]
    assert table(rows, width=80, shortened=True) == table(rows) == "A    B\none  two words\n"


def test_the_widest_column_gives_way_and_names_keep_their_ends() -> None:
    rows = [[["NAME"], ["X"]], [["finetune-of-the-large-model-pairs-4w7xp"], ["y" * 10]]]
    text = table(rows, width=30, shortened=True)
    assert text == f"NAME                X\nfinetune-…rs-4w7xp  {'y' * 10}\n"


def test_words_are_never_shorter_than_can_be_read() -> None:
    rows = [[["n" * 40] for _ in range(5)]]
    for word in table(rows, width=20, shortened=True).split():
        assert len(word) == LEAST


@pytest.mark.parametrize("width", [None, 40])
def test_control_characters_are_inert(width: int | None) -> None:
    assert "\x1b" not in table([[["a\x1b[2J b"]]], width=width)
