"""What `pip install 'koordra[demo]'` installs: both wheels in an environment of their own, away from the
checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli.main import cli
from koordra.topology import presets
from tests.conftest import ROOT

pytestmark = pytest.mark.long

PRESETS = ROOT / "koordra" / "topology" / "presets"
"""Descriptions, and what they lay over."""
EXAMPLE = "gpu-share-with-nic"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    pytest.importorskip("hatchling")
    into = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "devcluster"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
        subprocess.run(command, cwd=project, capture_output=True, check=True)
    return sorted(into.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs. What the wheels depend on is this environment's, by a path that leads to
    its packages and not to the checkout."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    packages = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)]
    subprocess.run(install, check=True, capture_output=True)
    return place / "bin"


def ran(installed: Path, *command: str, at: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program, *arguments = command
    return subprocess.run(
        [str(installed / program), *arguments], cwd=at, env=env, capture_output=True, text=True, check=False
    )


def test_the_wheels_hold_the_examples_and_machines_and_no_native_code(wheels: list[Path]) -> None:
    of_koordra, of_double = (set(zipfile.ZipFile(one).namelist()) for one in wheels)
    assert "koordra_devcluster/demo/__init__.py" in of_double
    for folder in sorted((ROOT / "deploy" / "examples").iterdir()):
        for path in folder.rglob("*"):
            assert not path.is_file() or f"koordra/_deploy/{path.relative_to(ROOT / 'deploy')}" in of_koordra
    assert "koordra/_deploy/kustomize/base/deviceclasses.yaml" in of_koordra
    assert {f"koordra/topology/presets/{path.name}" for path in PRESETS.glob("*.*ml")} <= of_koordra
    assert not [name for name in of_koordra | of_double if name.endswith(".so")], (
        "any machine may install them"
    )


def test_an_example_runs_from_them(installed: Path, tmp_path: Path) -> None:
    where = ran(installed, "python", "-c", "import koordra; print(koordra.__file__)", at=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent), where
    listed = ran(installed, "koordra", "demo", "--example", "list", at=tmp_path)
    assert {one.name for one in (ROOT / "deploy" / "examples").iterdir() if one.is_dir()} <= set(
        listed.stdout.split()
    )
    found = ran(installed, "koordra", "demo", "--example", EXAMPLE, "-o", "json", at=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)


@pytest.mark.parametrize("machine", [name for name in presets.names() if presets.load(name).overlay])
def test_a_machine_is_what_it_is_in_a_checkout(installed: Path, tmp_path: Path, machine: str) -> None:
    shown = ["topology", "--machine", machine, "-o", "json"]
    found, here = ran(installed, "koordra", *shown, at=tmp_path), CliRunner().invoke(cli, shown)
    assert found.returncode == 0, found.stderr
    assert found.stdout == here.stdout
