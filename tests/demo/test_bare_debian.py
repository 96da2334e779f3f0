"""The wheels and the source distributions in a bare Debian, where nothing but Python is; and then a checkout,
with what README names and no more. What they depend on comes from folders that pip fills on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra import __version__
from tests.conftest import ROOT
from tests.e2e.debian import Unavailable, system_archive

pytestmark = pytest.mark.slow

LONGEST = 1800
"""Seconds for one command, on a busy machine."""
EXAMPLE = "gpu-share-with-nic"
PRESETS = sorted(path.stem for path in (ROOT / "koordra" / "topology" / "presets").glob("*.yaml"))


class BareRoot:
    """A Debian below a folder; commands run in it with mounts of their own, which end with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        mounts = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs none "$0/run"'
        inside = ["env", "-i", "PATH=/usr/bin:/bin:/v/bin", "HOME=/root", "LANG=C.UTF-8", *command]
        return subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                f'{mounts} && cd / && exec chroot "$0" "$@"',
                self.folder,
                *inside,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )

    def done(self, *command: str) -> str:
        ran = self.run(*command)
        assert ran.returncode == 0, f"{command}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
        return ran.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """koordra's own, both forms, and the wheels of all that they need, for the Python of this machine."""
    pytest.importorskip("hatchling")
    into = tmp_path_factory.mktemp("packages")
    for project in (ROOT, ROOT / "devcluster"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(into)]
        subprocess.run(command, cwd=project, capture_output=True, check=True)
    wheels = [*into.glob("*.whl"), "hatchling"]
    download(into, *wheels)
    return into


def download(into: Path, *wanted: str | Path) -> None:
    """Wheels of these and of what they need, or the test is skipped."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "-d", into, *wanted]
    got = subprocess.run(command, capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"no wheels of what koordra depends on: {got.stderr[-300:]}")


@pytest.fixture(scope="module")
def bare(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("debootstrap and root are needed")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Debian 12 has Python 3.11, for which the wheels of another Python are not")
    try:
        archive = system_archive()
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("debian")
    command = [
        "debootstrap",
        "--variant=minbase",
        "--include=python3,python3-venv",
        "bookworm",
        str(folder),
        archive.uri,
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    if made.returncode:
        pytest.skip(f"no bare Debian can be had: {made.stdout[-300:]}")
    root = BareRoot(folder)
    shutil.copytree(packages, folder / "packages")
    root.done("python3", "-m", "venv", "/v")
    root.done(
        "/v/bin/pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        "/packages",
        f"koordra[demo]=={__version__}",
    )
    yield root
    shutil.rmtree(folder, ignore_errors=True)


def test_it_says_what_it_is(bare: BareRoot) -> None:
    said = bare.done("koordra", "version")
    assert said.startswith(f"koordra {__version__}, Python 3.11.")
    assert bare.done("python3", "-c", "import os; print(os.path.exists('/work'))") == "False\n"


def test_all_machines_are_there(bare: BareRoot) -> None:
    for name in PRESETS:
        assert "gpu" in bare.done("koordra", "topology", "--machine", name).lower(), name
    refused = bare.run("koordra", "topology", "--machine", "nonsense")
    assert refused.returncode == 2
    assert "hgx-h100" in refused.stderr


def test_an_example_runs(bare: BareRoot) -> None:
    said = json.loads(
        bare.done("koordra", "demo", "--example", EXAMPLE, "-o", "json", "--timeout", str(LONGEST // 2))
    )
    assert said


def test_a_checkout_shows_a_placement_as_the_readme_says(bare: BareRoot) -> None:
    """By the packages and the command that README names; `make demo` makes its environment itself."""
    readme = (ROOT / "README.md").read_text()
    (named,) = re.findall(r"`apt install ([^`]+)`", readme)
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *named.split()]
    got = bare.run("env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *install)
    if got.returncode:
        pytest.skip(f"Debian's packages cannot be had: {got.stderr[-300:]}")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().rstrip("\0").split("\0"):
        (bare.folder / "koordra" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, bare.folder / "koordra" / name, follow_symlinks=False)
    download(bare.folder / "pinned", "--require-hashes", "-r", ROOT / "requirements" / "run.txt")
    assert "\n    make demo " in readme
    in_checkout = ["env", "-C", "/koordra", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/pinned"]
    shown = bare.done(*in_checkout, "make", "demo")
    assert re.search(r"^inference +node-\d +PXB +gpu: ", shown, re.MULTILINE)
    assert bare.done("/koordra/.venv/bin/koordra", "version").startswith(f"koordra {__version__}, ")


def test_the_source_distributions_make_the_same_wheels(packages: Path, tmp_path: Path) -> None:
    for name, tops in (
        ("koordra", {"koordra", "native", "proto", "deploy"}),
        ("koordra_devcluster", {"koordra_devcluster"}),
    ):
        (archive,) = packages.glob(f"{name}-{__version__}.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(tmp_path, filter="data")
        folder = tmp_path / archive.name.removesuffix(".tar.gz")
        assert tops <= {path.name for path in folder.iterdir()}
        built = tmp_path / f"{name}.built"
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        (wheel,), (before,) = built.glob("*.whl"), packages.glob(f"{name}-{__version__}-*.whl")
        assert wheel.read_bytes() == before.read_bytes()
