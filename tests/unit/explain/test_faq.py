"""docs/faq.md: every command prints what the page says (`--regen` writes it), and every other answer names
tests and pages that are there."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.cli.main import cli
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.unit.allocator.machines import joint
from tests.unit.allocator.machines import request as asks
from tests.unit.dashboard.scene import fleet, running, waiting

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "faq.md"
SHOWN = re.compile(r"```\n\$ koordra ([^\n]*)\n(.*?)```", re.DOTALL)
SECTION = re.compile(r"^## (\d+)\. .*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
AGE = re.compile(r" +\d+[smhd]$", re.MULTILINE)
ORDER = (kinds.DEVICE_CLASSES, kinds.NODES, kinds.RESOURCE_SLICES, kinds.RESOURCE_CLAIMS, kinds.PODS)


def cluster() -> list[Object]:
    made = fleet("hgx-h100:2", "t4x4-1nic", per_block=2)
    sick = next(one for one in made if objects.spec_of(one).get("nodeName") == "hgx-h100-0000")
    cards = [
        device
        for device in sick["spec"]["devices"]
        if device["attributes"].get(names.ATTR_TYPE, {}).get("string") == names.TYPE_GPU
    ]
    fault = {"key": names.UNHEALTHY_TAINT, "value": "Xid79", "effect": "NoSchedule"}
    cards[-1]["taints"] = [*cards[-1].get("taints", ()), fault]
    made += waiting("pair", asks("gpu"), asks("nic", "nic"))
    next(one for one in made if one["kind"] == "ResourceClaim")["spec"]["devices"]["config"] = [
        joint("PCIeSwitch")
    ]
    made += waiting("share", asks("gpu", capacity={"memory": "20Gi", "cores": "30"}))
    made += waiting("train", asks("gpus", count=8), activeDeadlineSeconds=3 * 3600)
    running(made)
    made += waiting("big", asks("gpus", count=8))
    made += waiting("huge", asks("gpu", capacity={"memory": "120Gi"}))
    for one in made:
        for container in objects.spec_of(one).get("containers") or () if one["kind"] == "Pod" else ():
            container["image"] = "busybox"
        if (one.get("status") or {}).get("startTime"):
            one["status"]["startTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return made


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    stop = threading.Event()
    plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    made = cluster()
    for kind in ORDER:
        for one in (each for each in made if each["kind"] == kind.kind):
            status = one.get("status")
            bare = {name: value for name, value in one.items() if name != "status"}
            stored = client.create(kind, bare)
            if status:
                client.update(kind, {**stored, "status": status}, subresource="status")
    yield str(plane.kubeconfig)
    stop.set()
    plane.close()


def told(words: str, kubeconfig: str) -> str:
    where = [] if " -f " in words else ["--kubeconfig", kubeconfig]
    ran = CliRunner().invoke(cli, [*shlex.split(words), *where], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return AGE.sub("  5m", ran.stdout)


def as_it_should_be(text: str, kubeconfig: str) -> str:
    return SHOWN.sub(lambda found: f"```\n$ koordra {found[1]}\n{told(found[1], kubeconfig)}```", text)


def test_every_command_prints_what_the_page_says(
    kubeconfig: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text()
    assert len(SHOWN.findall(text)) >= 9
    wanted = as_it_should_be(text, kubeconfig)
    if request.config.getoption("--regen"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "see pytest --regen"


def test_nineteen_questions_are_answered_by_commands_tests_and_pages_that_are_there() -> None:
    sections = {int(found[1]): found[0] for found in SECTION.finditer(PAGE.read_text())}
    assert sorted(sections) == list(range(1, 20))
    for number, text in sections.items():
        tests = re.findall(r"`(tests/[\w/.:-]+)`", text)
        assert tests or SHOWN.search(text), number
        assert not [name for name in tests if not _is_a_test(name)], number
        links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text)
        assert links or SHOWN.search(text), number
        for path, anchor in links:
            page = PAGE.parent / path
            assert page.is_file(), (number, path)
            assert not anchor or anchor in _anchors(page), (number, path, anchor)


def _is_a_test(name: str) -> bool:
    """As pytest takes it: one function, which can be run by this name."""
    path, _, function = name.partition("::")
    return function.startswith("test_") and f"\ndef {function}(" in (ROOT / path).read_text()


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
