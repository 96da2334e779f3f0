"""The demo as a person runs it: from manifests to containers, through kills of every process, to a clean end.

A demo that stays is started once, for the tests that come to it as it runs. Kills on its way up start one
each, and are for make e2e-long.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import ApiError
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.demo import report
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

PROGRAMS = {
    "control plane": ("devcluster", "control-plane"),
    "controller": ("controller",),
    "kubelet": ("devcluster", "kubelet"),
    "kubelet plugin": ("kubelet-plugin",),
    "NRI hook": ("nri",),
}
EXPECTED_LEVELS = {"finetune": "PXB", "inference": "PXB", "pretrain": "PXB"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, since unix sockets live in it."""
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "koordra",
        "demo",
        "-o",
        "json",
        "--timeout",
        "600",
        "--dir",
        str(folder),
    ]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes(folder: Path, program: tuple[str, ...] = ()) -> list[int]:
    """The koordra processes that work in `folder`, of one program or of all of them, without the demo
    itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            ours = words[1:3] == ["-m", "koordra"] and any(word.startswith(str(folder)) for word in words)
            if ours and words[3] != "demo" and tuple(words[3 : 3 + len(program)]) == program:
                found.append(int(entry.name))
    return sorted(found)


def until(look: Callable[[], Any], what: str, timeout: float = 5 * PATIENCE) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {timeout:.0f} s")


def state(folder: Path) -> dict[str, Any] | None:
    """The report of this moment, or None while something is under way or the API server is away."""
    try:
        client = new_client(str(folder / "kubeconfig"), timeout=PATIENCE)
        observation = report.observe(client)
    except ApiError:
        return None
    if report.outstanding(observation):
        return None
    nodes = sorted((folder / "nodes").iterdir())
    return report.document(observation, (), nodes={node.name: "hgx-h100" for node in nodes}, folders=nodes)


def read_document(demo: subprocess.Popen[str]) -> dict[str, Any]:
    """The one JSON document on stdout of a demo that stays."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if line == "}\n":
            break
    document: dict[str, Any] = json.loads("".join(lines))
    return document


@dataclass(frozen=True)
class Standing:
    """A demo that stays, with what it has printed."""

    folder: Path
    document: dict[str, Any]


@pytest.fixture(scope="module")
def standing() -> Iterator[Standing]:
    """Ends as Ctrl-C ends it, and cleanly."""
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    demo = start(folder, "--keep")
    try:
        yield Standing(folder, read_document(demo))
        demo.send_signal(signal.SIGINT)
        _, progress = demo.communicate(timeout=3 * PATIENCE)
        assert demo.returncode == 0, progress
        assert processes(folder) == []
    finally:
        demo.kill()
        demo.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_every_process_may_be_killed(standing: Standing) -> None:
    folder, document = standing.folder, standing.document
    assert {claim["pods"][0]: claim["level"] for claim in document["claims"]} == EXPECTED_LEVELS
    settled = until(lambda: state(folder), "a settled cluster")
    assert settled["claims"] == document["claims"]
    for name, program in PROGRAMS.items():
        victim = processes(folder, program)[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda old=victim: old not in processes(folder), f"the end of the {name}")
        until(
            lambda program=program, old=victim: [pid for pid in processes(folder, program) if pid != old],
            f"the {name} started again",
        )
        until(lambda: state(folder) == settled, f"the same state after the {name} was killed")
        time.sleep(1.0)
        until(lambda: state(folder) == settled, f"a state that stays after the {name} was killed")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "after"), [("control plane", 2.2), ("kubelet plugin", 3.0)])
def test_a_kill_on_the_way_up_changes_nothing(folder: Path, program: str, after: float) -> None:
    """Who gets which node depends on who comes first; that everybody gets what he asked for does not."""
    demo = start(folder)
    try:
        until(lambda: processes(folder, PROGRAMS[program]), f"the {program}")
        time.sleep(after)
        os.kill(processes(folder, PROGRAMS[program])[0], signal.SIGKILL)
        out, progress = demo.communicate(timeout=10 * PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 0, progress
    document = json.loads(out)
    assert {claim["pods"][0]: claim["level"] for claim in document["claims"]} == EXPECTED_LEVELS
    assert [claim["name"] for claim in document["pending"]] == ["too-large"]
    assert all(reason["detail"] for claim in document["pending"] for reason in claim["reasons"])
    assert processes(folder) == []


@pytest.mark.slow
def test_the_api_server_may_be_killed_while_manifests_are_applied(folder: Path) -> None:
    demo = start(folder)
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if "API server at" in line:
                break
        os.kill(processes(folder, PROGRAMS["control plane"])[0], signal.SIGKILL)
        out, progress = demo.communicate(timeout=10 * PATIENCE)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 0, progress
    assert {claim["pods"][0] for claim in json.loads(out)["claims"]} == set(EXPECTED_LEVELS)


def test_ctrl_c_on_the_way_up_leaves_nothing(folder: Path) -> None:
    demo = start(folder)
    until(lambda: processes(folder), "the first process")
    time.sleep(1.0)
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=3 * PATIENCE)
    assert (demo.returncode, out) == (130, "")
    assert processes(folder) == []


def test_a_folder_that_is_not_the_demos_is_left_alone(folder: Path) -> None:
    (folder / "thesis.tex").write_text("years of work")
    demo = start(folder)
    _, progress = demo.communicate(timeout=3 * PATIENCE)
    assert demo.returncode == 2
    assert "holds files that are not the demo's" in progress
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_a_path_too_long_for_sockets_is_told_at_once(folder: Path) -> None:
    demo = start(folder / ("x" * 90))
    _, progress = demo.communicate(timeout=3 * PATIENCE)
    assert demo.returncode == 2
    assert "name a folder with a shorter path" in progress


def test_mistakes_are_told_and_nothing_is_started(folder: Path) -> None:
    demo = start(folder / "cluster", "-f", str(Path(__file__).parent / "mistakes.yaml"))
    out, progress = demo.communicate(timeout=3 * PATIENCE)
    assert (demo.returncode, out) == (2, "")
    for words in (
        "there is no DeviceClass nope.example.com",
        "device.driver ==",
        "GpuConfig has no field 'memoryPercnt' (did you mean memoryPercent?)",
        "Deployment unknown",
        "nothing was started",
    ):
        assert words in progress
    assert list(folder.iterdir()) == []


def test_what_cannot_be_served_is_told_and_the_good_claim_is_served(folder: Path) -> None:
    """What only the machines can tell."""
    demo = start(folder, "-f", str(Path(__file__).parent / "unservable.yaml"))
    out, progress = demo.communicate(timeout=10 * PATIENCE)
    assert demo.returncode == 1, progress
    document = json.loads(out)
    assert [claim["name"] for claim in document["claims"]] == ["good"]
    told = {
        claim["name"]: " ".join(f"{reason['reason']}: {reason['detail']}" for reason in claim["reasons"])
        for claim in document["pending"]
    }
    for name, words in {
        "many": "requested 30 of class gpu.koordra.io, no node has more than 8",
        "runtime-cel": "no such key: nosuch",
        "alone": "no pod refers to the claim",
        "empty": "asks for no device",
    }.items():
        assert words in told[name], (name, told.get(name))
    assert "ResourceClaim default/many is not allocated" in progress


def kubectl(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    done = subprocess.run(
        ["kubectl", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_explain_asks_the_controller_through_the_api_server(standing: Standing) -> None:
    node = min((standing.folder / "nodes").iterdir()).name
    command = [sys.executable, "-m", "koordra", "explain", f"node/{node}", "-o", "json", "--kubeconfig"]

    def asked() -> dict[str, Any] | None:
        """The controller's answer; nothing while it has not begun to lead."""
        done = subprocess.run(
            [*command, str(standing.folder / "kubeconfig")], capture_output=True, text=True, check=True
        )
        return None if done.stderr else json.loads(done.stdout)

    (entry,) = until(asked, "an answer of the controller")["nodes"]
    assert (entry["name"], entry["mode"]) == (node, "joint")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_kubectl_lists_describes_and_watches(standing: Standing) -> None:
    folder, manifests = standing.folder, str(Path(__file__).parent / "one-share.yaml")
    kubectl(folder, "create", "-f", manifests)
    try:
        kubectl(folder, "wait", "--for=condition=Ready", "pod/one", "--timeout=300s")
        listed = kubectl(folder, "get", "nodes,pods,resourceclaims,resourceslices,deviceclasses,events")
        assert re.search(r"pod/one\s+1/1\s+Running", listed)
        assert re.search(r"resourceclaim\S*/one\s+allocated,reserved", listed)
        assert "koordra.io" in kubectl(folder, "describe", "resourceslices")
        assert re.search(r"gpu-0000-\w\w-00-0", kubectl(folder, "describe", "resourceclaim", "one"))
        assert "Events:" in kubectl(folder, "describe", "pod", "one")
        watch = subprocess.Popen(
            ["kubectl", "get", "pod", "one", "--watch", "-o", "name"],
            env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert watch.stdout is not None
            assert watch.stdout.readline() == "pod/one\n"
            kubectl(folder, "delete", "pod", "one", "--wait=true", "--timeout=300s")
            assert watch.stdout.readline() == "pod/one\n"
        finally:
            watch.kill()
            watch.wait()
            if watch.stdout:
                watch.stdout.close()
    finally:
        kubectl(folder, "delete", "-f", manifests, "--ignore-not-found", "--timeout=300s")
