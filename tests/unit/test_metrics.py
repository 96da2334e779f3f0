"""Counting, and telling it over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from koordra.errors import InvalidInput
from koordra.metrics import Metrics, parse_address, serve
from tests.fakes.metric_samples import sample
from tests.patience import PATIENCE


def read(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_instruments_are_counted_and_served() -> None:
    metrics, ready, well = Metrics(), [False], [True]
    metrics.counter("koordra_test_things", "Things.", ["reason"]).labels("Tainted").inc(3)
    server = serve(metrics, "127.0.0.1:0", ready=lambda: ready[0], well=lambda: well[0])
    assert server is not None
    try:
        assert 'koordra_test_things_total{reason="Tainted"} 3.0' in read(server.port, "/metrics")[1]
        assert read(server.port, "/healthz")[0] == 200
        assert read(server.port, "/readyz")[0] == 503
        ready[0] = True
        assert read(server.port, "/readyz?verbose")[0] == 200
        well[0] = False
        assert read(server.port, "/healthz") == (503, "a thread is stuck, see the log\n")
        assert read(server.port, "/else")[0] == 404
        with pytest.raises(InvalidInput, match="in use"):
            serve(metrics, f"127.0.0.1:{server.port}")
    finally:
        server.close()
    assert sample(metrics, "koordra_test_things_total", {"reason": "Tainted"}) == 3.0


def test_addresses() -> None:
    assert parse_address(":9400") == ("", 9400)
    assert parse_address("[::1]:9400") == ("::1", 9400)
    assert serve(Metrics(), "") is None
    for wrong in ("9400", "host:", "host:99999", "host:x"):
        with pytest.raises(InvalidInput, match="host:port"):
            parse_address(wrong)
