"""Where the runtime's packages come from: the system's own Debian mirror, in whichever form its sources are
written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.debian import Archive, Unavailable, system_archive

pytestmark = pytest.mark.e2e

DEB822 = """# a comment
Types: deb
URIs: http://mirror.example.org/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://mirror.example.org/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
ONE_LINE = """
# deb http://old.example.org/debian stretch main
deb https://packages.example.com/tool stable main
deb [arch=amd64 signed-by=/etc/apt/keyrings/d.gpg] http://mirror.example.org/debian/ trixie main non-free
"""


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")


def test_deb822_sources(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert system_archive(tmp_path) == Archive("http://mirror.example.org/debian", keyring, "bookworm")


def test_one_line_sources(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE)
    assert system_archive(tmp_path) == Archive(
        "http://mirror.example.org/debian/", "/etc/apt/keyrings/d.gpg", "trixie"
    )


@pytest.mark.parametrize("text", ["", "deb http://archive.example.org/ubuntu noble main universe\n"])
def test_a_system_that_is_not_debian(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.list").write_text(text)
    with pytest.raises(Unavailable, match="no apt source for Debian"):
        system_archive(tmp_path)


def test_a_system_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(Unavailable, match="there is no apt-get"):
        system_archive(tmp_path)
