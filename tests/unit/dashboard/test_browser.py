"""The dashboard in a real browser: Debian's Chromium, headless. That a page looks well a person has to see;
here it is drawn, and the page's own policy lets through what the page needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.cli.cluster.dashboard.access import require_own_name
from koordra.cli.cluster.dashboard.live import Live
from koordra.cli.cluster.dashboard.server import DashboardServer
from tests.patience import PATIENCE
from tests.unit.dashboard.scene import busy, listed

pytestmark = pytest.mark.long

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)
SCREENSHOT = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    if CHROMIUM is None:
        pytest.skip("chromium is not here (Debian's package chromium)")
    objects = listed(busy())
    server = DashboardServer(
        ("127.0.0.1", 0), Live(lambda: (1, objects), pause=lambda _: None), require=require_own_name
    )
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def browse(address: str, folder: Path, *options: str) -> tuple[str, str]:
    """What is on the page when it is drawn, and what the browser complains of."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout, "\n".join(line for line in ran.stderr.splitlines() if "CONSOLE" in line)


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(SCREENSHOT)
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", "70 free"),
        ("/waiting", "no device has more than 185.0Gi"),
        ("/node/gb200-nvl72-0000", "by the limiter inside the container"),
        ("/gang/default/train", "block block-001"),
    ],
)
def test_a_page_is_drawn_as_it_was_sent(site: str, tmp_path: Path, path: str, words: str) -> None:
    """Chromium complains of what a policy refuses."""
    picture = tmp_path / "page.png"
    document, complaints = browse(
        site + path, tmp_path, "--dump-dom", "--window-size=1200,900", f"--screenshot={picture}"
    )
    assert words in re.sub(r"<br>|</?(a|small|b)[^>]*>", "", document)
    assert not complaints
    assert size(picture.read_bytes()) == (1200, 900)
