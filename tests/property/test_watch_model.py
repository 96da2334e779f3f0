"""Watches over a wire on which everything happens that may, and the same with one error in the product, which
a schedule has to find.

`tests/fakes/watch_world` has the schedules, `model_watch` what must hold. `make soak` runs many more.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from koordra import logs
from koordra.kube import client, watch, wire
from tests.fakes.mutated import mutated
from tests.fakes.watch_world import one_schedule
from tests.long import mostly_long


@pytest.fixture(autouse=True, scope="module")
def no_logs() -> Iterator[None]:
    """What a watch meets is told by the model."""
    logs.configure(level="critical")
    yield
    logs.configure(level="warning")


@pytest.mark.parametrize("schedules", mostly_long([range(400), range(400, 10_000)]), ids=str)
def test_a_copy_is_what_the_server_had_whatever_the_wire_does(schedules: range) -> None:
    drawn: set[str] = set()
    for seed in schedules:
        drawn |= one_schedule(seed).faults.drawn.keys()
    expected = {"list", "page", "watch", "newest", "stream", "listener", "meanwhile"}
    assert {each.partition(":")[0] for each in drawn} == expected


MUTANTS: tuple[tuple[ModuleType, str, str, int], ...] = (
    # An event that was told before is believed.
    (watch, "if version and not is_newer(version, self._version):", "if False:", 4),
    # ... or the same event twice.
    (watch, "not is_newer(version, self._version)", "is_newer(self._version, version)", 4),
    # The list of a server that lags behind is believed.
    (watch, "        self._require_newest(version)\n", "", 6),
    (watch, "version == self._version or is_newer(version, self._version)", "version != self._version", 6),
    # Objects of a list that are known are told as new ones, or become others silently.
    (watch, "fresh[object_key] = before", "pass", 5),
    (watch, "(known := old.get(object_key)) is not obj", "(known := old.get(object_key)) is None", 5),
    (watch, '"ADDED" if known is None', '"MODIFIED" if known is None', 1),
    # What a list lacks is not told.
    (watch, "for object_key in old.keys() - fresh.keys():", "for object_key in ():", 16),
    # The version of the list, or of an event, is not gone on from.
    (watch, "self._version, self._is_listed = version, True", "self._is_listed = True", 1),
    (watch, "        self._version = version or self._version\n", "", 1),
    # History is gone, and the watch goes on as if it were not.
    (
        watch,
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))\n                self._is_listed = False',
        '                    log.warning("watch_interrupted", kind=str(self.kind), error=str(error))',
        6,
    ),
    # A stream that broke off is a reason to list everything.
    (
        watch,
        "            except ApiUnreachable as error:\n                count_failure(error)\n",
        "            except ApiUnreachable as error:\n                self._is_listed = False\n                count_failure(error)\n",
        2,
    ),
    # A deletion leaves the object; the order of names is that of before.
    (watch, 'None if event == "DELETED" else obj)', "obj)", 2),
    (
        watch,
        "                self._order = None\n            set_or_drop",
        "                pass\n            set_or_drop",
        1,
    ),
    # What a listener could not take is forgotten.
    (watch, "            self._untold[object_key] = event, obj\n", "            pass\n", 11),
    # A bookmark is an object.
    (watch, 'if event != "BOOKMARK":', "if True:", 36),
    # The second page is the first one again, is left out, or belongs to a later moment.
    (client, "items, query = [], {**query,", "query = {**query,", 6125),
    (client, 'if not query["continue"]:', "if True:", 5),
    # An ERROR event is an interruption, or the end.
    (client, "raise Gone(", "raise ApiUnreachable(", 38),
    # The version to watch from is not said.
    (client, 'query |= {"resourceVersion": resource_version, ', 'query |= {"resourceVersion": "1", ', 6),
    # A connection that breaks off ends the watch like any defect.
    (
        client,
        "                yield kind_of_event, kinds.to_v1(obj)\n        except (HTTPError, OSError) as error:",
        "                yield kind_of_event, kinds.to_v1(obj)\n        except OSError as error:",
        6,
    ),
    # A line that was cut is put together with nothing, or dropped with what follows it.
    (wire, '        *whole, rest = rest.split(b"\\n")', '        whole, rest = rest.split(b"\\n"), b""', 6),
    (wire, "        rest += chunk", "        rest = chunk", 6),
)


@pytest.mark.parametrize(("module", "text", "replaced", "budget"), MUTANTS)
def test_an_error_is_found(module: ModuleType, text: str, replaced: str, budget: int) -> None:
    with mutated(module, text, replaced):
        for seed in (budget - 1, *range(budget)):
            try:
                one_schedule(seed)
            except AssertionError as error:
                print(f"found by schedule {seed}: {error}")
                return
    raise AssertionError(f"{budget} schedules have not found it")
