"""The tables of `make mutants` fit the code, and the errors are those that are meant."""

from __future__ import annotations

import ast

from tests.mutants.areas import AREAS, files
from tests.mutants.judge import differ, functions
from tests.mutants.named import FEASIBILITY, WEIGHTS, is_named, named
from tests.mutants.operators import mutants

SOURCE = """
LIMIT: Final = 3

def decide(left: int = 1) -> bool | None:
    '''Words are left alone.'''
    log.info("so", left=1)
    if left < LIMIT and not asked():
        left += 1
        return True
    raise ValueError("too many", 4)
"""


def test_every_module_is_there_and_every_named_error_fits() -> None:
    """Whoever moves a module or changes the line of a named error says here what it looks like now."""
    for area in AREAS:
        assert files(area)
    assert len(list(named())) == len({mutant.name for mutant in named()})
    numbers = [
        mutant.constant
        for module, path in files("score").items()
        for mutant in mutants("score", module, ast.parse(path.read_text()))
        if is_named(mutant)
    ]
    assert set(numbers) == set(WEIGHTS)
    assert FEASIBILITY in files("search")


def test_every_named_error_changes_what_some_function_does() -> None:
    """What the judge takes for the same code it does not put in place."""
    for mutant in named():
        if mutant.constant is None:
            path = files(mutant.area)[mutant.module]
            before = functions(compile(path.read_text(), str(path), "exec", dont_inherit=True))
            after = functions(compile(mutant.applied(), str(path), "exec", dont_inherit=True))
            assert any(key in before and differ(code, before[key]) for key, code in after.items()), (
                mutant.name
            )


def test_the_errors() -> None:
    found = [(mutant.where, mutant.what) for mutant in mutants("area", "module", ast.parse(SOURCE))]
    assert found == [
        ("LIMIT", "`3` -> `4`"),
        ("LIMIT", "`3` -> `2`"),
        ("decide", "`left < LIMIT and (not asked())` -> `left < LIMIT or not asked()`"),
        ("decide", "`left < LIMIT and (not asked())` -> `not (left < LIMIT and (not asked()))`"),
        ("decide", "`left < LIMIT` -> `left <= LIMIT`"),
        ("decide", "`left < LIMIT` -> `left >= LIMIT`"),
        ("decide", "`not asked()` -> `asked()`"),
        ("decide", "without `left += 1`"),
        ("decide", "`left += 1` -> `left -= 1`"),
        ("decide", "`1` -> `2`"),
        ("decide", "`1` -> `0`"),
        ("decide", "`return True` -> None"),
        ("decide", "`True` -> `False`"),
        ("decide", "without `raise ValueError('too many', 4)`"),
    ]
