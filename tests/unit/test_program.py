"""The program itself: what its help imports, and commands that are not installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

import koordra
from tests.conftest import ROOT


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_imports_click_and_the_standard_library_alone() -> None:
    """What `koordra --help` imports on top of a bare interpreter (which a .pth file may have filled)."""
    found = _python(
        "import sys; before = set(sys.modules)\n"
        "from koordra.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print('imported', *{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    assert found.returncode == 0, found.stderr
    imported = set(found.stdout.splitlines()[-1].split()[1:])
    assert imported - sys.stdlib_module_names == {"click", "koordra"}


@pytest.mark.parametrize("command", ["demo", "devcluster"])
def test_without_the_demo_distribution_its_commands_name_what_to_type(command: str) -> None:
    found = _python(
        "import sys; from pathlib import Path\n"
        "sys.path[:] = [one for one in sys.path if not Path(one, 'koordra_devcluster').is_dir()]\n"
        f"sys.argv = ['koordra', {command!r}]\n"
        "from koordra.cli.main import main\nmain()"
    )
    assert found.returncode == 2
    assert f"koordra {command} is not installed; type: pip install 'koordra[demo]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_two_distributions_name_each_others_version() -> None:
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    demo = tomllib.loads((ROOT / "devcluster" / "pyproject.toml").read_text())["project"]
    assert main["version"] == demo["version"] == koordra.__version__
    assert main["optional-dependencies"]["demo"] == [f"{demo['name']}=={demo['version']}"]
    assert demo["dependencies"] == [f"koordra[cli]=={koordra.__version__}"]
