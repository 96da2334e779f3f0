"""Registration sockets: one that gets other rights is the same one, one that is made again is another."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

import pytest

from koordra_devcluster.kubelet import registry
from koordra_devcluster.kubelet.directory import DirectoryWatch
from koordra_devcluster.kubelet.drivers import Drivers
from tests.fakes.descriptors import more_than_select_takes
from tests.patience import PATIENCE


class Registered:
    def __init__(self) -> None:
        self.removed: list[str] = []

    def remove(self, driver: str, endpoint: str) -> None:
        self.removed.append(f"{driver} {endpoint}")


def test_a_plugin_that_restricts_its_socket_is_not_registered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    introduced = list[str]()
    monkeypatch.setattr(registry, "_introduce", lambda path, _known, _drivers: introduced.append(path.name))
    monkeypatch.chdir(tmp_path)  # the whole path of a socket may have 107 letters
    drivers = Registered()
    found = registry.PluginRegistry(tmp_path, cast(Drivers, drivers))
    with socket.socket(socket.AF_UNIX) as first:
        first.bind("one.sock")
        found.reconcile()
        (tmp_path / "one.sock").chmod(0o600)
        found.reconcile()
    assert (introduced, drivers.removed) == (["one.sock"], [])
    (tmp_path / "one.sock").unlink()
    with socket.socket(socket.AF_UNIX) as second:
        second.bind("one.sock")
        found.reconcile()
    assert (introduced, len(drivers.removed)) == (["one.sock", "one.sock"], 1)


def test_a_directory_is_watched_among_a_thousand_open_files(tmp_path: Path) -> None:
    with more_than_select_takes():
        watch = DirectoryWatch(tmp_path)
        try:
            assert not watch.wait(0)
            (tmp_path / "one").touch()
            assert watch.wait(PATIENCE)
            assert not watch.wait(0)
        finally:
            watch.close()
