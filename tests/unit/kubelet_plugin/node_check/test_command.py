"""`koordra node check` as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli.main import cli
from koordra.kubelet_plugin.node_check.check_node import CHECKS
from tests.fakes import node_files


def write(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_problem_ends_with_1_and_names_the_remedy(tmp_path: Path) -> None:
    write(tmp_path, "dev/dxg")
    done = CliRunner().invoke(cli, ["node", "check", "--root", str(tmp_path), "-o", "json"])
    checks = {check["name"]: check for check in json.loads(done.output)["checks"]}
    assert done.exit_code == 1
    assert checks["platform"]["status"] == "problem"
    assert checks["platform"]["remedy"]


def test_without_a_problem_it_ends_with_0(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["node", "check", "--root", str(tmp_path)])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, f"{len(CHECKS)} checks, no problems")


def test_the_runtime_is_to_read_the_folder_that_is_named(tmp_path: Path) -> None:
    node_files.healthy(tmp_path)

    def status(*more: str) -> str:
        done = CliRunner().invoke(cli, ["node", "check", "--root", str(tmp_path), "-o", "json", *more])
        return next(str(one["status"]) for one in json.loads(done.output)["checks"] if one["name"] == "cdi")

    assert (status(), status("--cdi-dir", "/nobody/reads")) == ("ok", "problem")


def test_a_node_that_is_not_there_is_not_well(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["node", "check", "--root", str(tmp_path / "hots")])
    assert done.exit_code == 2
    assert "hots' does not exist" in done.output


@pytest.mark.parametrize("arguments", [["node", "--help"], ["node", "check", "--help"]])
def test_help_imports_click_and_the_standard_library_alone(arguments: list[str]) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from koordra.cli.main import cli\n"
        f"cli.main({arguments!r}, standalone_mode=False)\n"
        "print('imported', *{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split()[1:])
    assert imported - sys.stdlib_module_names == {"click", "koordra"}
