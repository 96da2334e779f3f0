"""Ports of clusters that start beside each other."""

from __future__ import annotations

import random
import socket
import subprocess
import sys

import pytest

from koordra_devcluster.demo.installation import free_port

ASKED = """
import random
from koordra_devcluster.demo.installation import free_port
draws = iter([{port}, {port} + 1])
random.randint = lambda low, high: next(draws)
print(free_port())
"""


def free_neighbours() -> int:
    """The first of two ports that nobody has."""
    while True:
        first = random.randint(15000, 29998)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", first))
                two.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first


def test_a_port_is_given_once_though_nobody_has_bound_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_neighbours()
    draws = iter([first, first, first + 1])
    monkeypatch.setattr(random, "randint", lambda low, high: next(draws))
    assert (free_port(), free_port()) == (first, first + 1)


def test_another_process_is_not_given_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_neighbours()
    monkeypatch.setattr(random, "randint", lambda low, high: first)
    assert free_port() == first
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(port=first)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == first + 1
