"""Containers out of this machine's own root: the spec's nodes, mounts and hooks, and nothing of the driver
beside."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, ContainerEdits, Mount
from koordra.kubelet_plugin.selftest.claims import AppliedClaim
from koordra.kubelet_plugin.selftest.container import NamespaceContainer, ProcessContainer
from koordra.kubelet_plugin.selftest.program_runs import Answer, Stopwatch, run
from koordra.kubelet_plugin.selftest.programs.answer import MARK
from koordra.kubelet_plugin.selftest.report import Report, Status
from koordra.kubelet_plugin.selftest.trials import Trials
from koordra.topology.location import DeviceNode
from tests.machines import catalogue
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.selftest.conftest import needs_namespaces

pytestmark = [needs_namespaces, pytest.mark.long]

HOOK = """\
#!{python}
import json, os, sys
state = json.load(sys.stdin)
config = json.load(open(state["bundle"] + "/config.json"))
root = config["root"]["path"]
os.symlink("libcuda.so.1", root + "/usr/lib/libcuda-by-hook.so")
said = dict(state, arguments=sys.argv, environment=dict(os.environ), bound=os.path.exists(root + "/opt/of-the-spec"))
json.dump(said, open({said!r}, "w"))
"""


@pytest.fixture
def claim(tmp_path: Path) -> AppliedClaim:
    gpu = catalogue.machine("h200-vm").gpus[0]
    return AppliedClaim("c", "uid", gpu, None, {}, NO_EDITS, (), None)


def ran(folder: Path, claim: AppliedClaim, code: str, **environment: str) -> Answer:
    command = NamespaceContainer(folder).command(claim, (sys.executable, "-c", code), environment)
    return run(command, folder=folder, deadline=PATIENCE)


def told(folder: Path, claim: AppliedClaim, expression: str) -> Any:
    code = f"import json, os, pathlib, sys; print({MARK!r} + json.dumps({{'said': {expression}}}))"
    answer = ran(folder, claim, code)
    assert answer.document is not None, answer
    return answer.document["said"]


def test_devices_and_mounts_are_those_of_the_spec(tmp_path: Path, claim: AppliedClaim) -> None:
    (tmp_path / "file").write_text("of the spec")
    edits = ContainerEdits(
        env=(("OF_THE_SPEC", "1"),),
        device_nodes=(DeviceNode("/dev/nvidia-caps/nvidia-cap1", 240, 7),),
        mounts=(Mount(str(tmp_path / "file"), "/opt/a/b/file"),),
    )
    with_spec = replace(claim, edits=edits)
    assert told(tmp_path, with_spec, "pathlib.Path('/opt/a/b/file').read_text()") == "of the spec"
    assert told(tmp_path, with_spec, "os.environ['OF_THE_SPEC']") == "1"
    number = told(tmp_path, with_spec, "os.stat('/dev/nvidia-caps/nvidia-cap1').st_rdev")
    assert number == os.makedev(240, 7)
    assert "nvidia-caps" not in told(tmp_path, claim, "os.listdir('/dev')")
    read_only = told(tmp_path, with_spec, "os.access('/opt/a/b/file', os.W_OK)")
    assert read_only is False


def test_nothing_of_the_machine_is_changed(tmp_path: Path, claim: AppliedClaim) -> None:
    code = "open('/etc/koordra-selftest-was-here', 'w').write('x')"
    assert told(tmp_path, claim, f"exec({code!r})") is None
    assert not Path("/etc/koordra-selftest-was-here").exists()
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if "koordra-selftest" in line]


def test_a_program_has_a_process_table_of_its_own(tmp_path: Path, claim: AppliedClaim) -> None:
    assert told(tmp_path, claim, "os.getpid()") == 2
    assert told(tmp_path, claim, "[name for name in os.listdir('/proc') if name.isdecimal()]") == ["1", "2"]


def with_hook(tmp_path: Path, claim: AppliedClaim, text: str) -> AppliedClaim:
    program = tmp_path / "hook"
    program.write_text(text)
    program.chmod(0o755)
    (tmp_path / "of-the-spec").touch()
    hook = {
        "hookName": "createContainer",
        "path": str(program),
        "args": ["hook", "--link"],
        "env": ["GIVEN=1"],
    }
    mount = Mount(str(tmp_path / "of-the-spec"), "/opt/of-the-spec")
    return replace(claim, edits=ContainerEdits(mounts=(mount,)), hooks=(hook,))


def test_hooks_run_as_a_runtime_runs_them(tmp_path: Path, claim: AppliedClaim) -> None:
    """After the mounts, with the OCI state and nothing but the hook's own environment; what it makes is
    there."""
    said = tmp_path / "said.json"
    hooked = with_hook(tmp_path, claim, HOOK.format(python=sys.executable, said=str(said)))
    assert told(tmp_path, hooked, "os.readlink('/usr/lib/libcuda-by-hook.so')") == "libcuda.so.1"
    state = json.loads(said.read_text())
    assert (state["status"], state["arguments"][1:], state["bound"]) == ("creating", ["--link"], True)
    assert {name: value for name, value in state["environment"].items() if name != "LC_CTYPE"} == {
        "GIVEN": "1"
    }
    assert not Path("/usr/lib/libcuda-by-hook.so").exists()


def test_a_hook_that_fails_leaves_no_container(tmp_path: Path, claim: AppliedClaim) -> None:
    failing = with_hook(tmp_path, claim, "#!/bin/sh\necho libcuda is a directory >&2\nexit 3\n")
    answer = ran(tmp_path, failing, "print(1)")
    assert answer.no_container
    assert answer.failure.endswith(f"hook {tmp_path / 'hook'} ended with 3: libcuda is a directory")


@pytest.mark.parametrize(
    ("container", "kind"), [("auto", ProcessContainer), ("namespace", NamespaceContainer)]
)
def test_where_the_spec_makes_no_container_programs_are_tried_in_a_plain_process(
    tmp_path: Path, claim: AppliedClaim, container: str, kind: type
) -> None:
    """Unless namespaces were asked for. A machine with a GPU is not to be had twice."""
    trials = Trials(
        Report(version="1"), Stopwatch(600), folder=tmp_path, native=tmp_path, nvml=None,
        python=sys.executable, container=container,
    )  # fmt: skip
    found = trials._choose(with_hook(tmp_path, claim, "#!/bin/sh\nexit 3\n"))
    assert found.status is Status.PROBLEM
    assert "ended with 3" in found.found
    assert "without them there is a container" in found.remedy
    assert isinstance(trials._container, kind)


def test_a_crash_inside_reads_like_one_outside(tmp_path: Path, claim: AppliedClaim) -> None:
    assert ran(tmp_path, claim, "import os; os.abort()").failure.startswith("it crashed with SIGABRT")
    assert ran(tmp_path, claim, "import os; os._exit(3)").failure.startswith("it ended with 3 and no answer")
