"""The worked example of docs/isolation-backends.md, a backend of another package: one folder and one entry
point, and claims can name it everywhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koordra.api.opaque.isolation import IsolationPolicy, node_policy
from koordra.api.opaque.isolation_words import isolations
from koordra.api.opaque.parameters import GpuConfig, decode
from koordra.errors import InvalidInput, InvalidParameters, PrepareError
from koordra.kubelet_plugin.isolation import card_calls
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.placement import plan
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, parameters, uid
from tests.patience import PATIENCE
from tests.unit.allocator import machines
from tests.unit.docs.worked_examples import PAGE, worked_example
from tests.unit.kubelet_plugin.conftest import Discovery, PluginNode, prepare, ref_of

BACKEND = worked_example("A backend of your own", "python", page=PAGE.with_name("isolation-backends.md"))
ENTRY_POINT = "[koordra.isolation]\nacme = acme:Acme\n"
CONFIG = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolation": "acme"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package as pip would have installed it."""
    site = tmp_path / "site-packages"
    files = {
        "acme/__init__.py": BACKEND,
        "acme-1.0.dist-info/entry_points.txt": ENTRY_POINT,
        "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(str(site))
    isolations.cache_clear()
    yield site
    sys.modules.pop("acme", None)
    isolations.cache_clear()


def test_without_the_package_nobody_knows_the_word() -> None:
    isolations.cache_clear()
    with pytest.raises(InvalidParameters, match="'acme' is not allowed"):
        decode(CONFIG, object="x", field="p")
    with pytest.raises(InvalidInput, match="no backend is called 'acme'"):
        node_policy(["acme"])


def test_one_folder_and_one_entry_point_are_all_it_takes(installed: Path) -> None:
    own = [path for path in installed.rglob("*") if path.is_file() and path.name != "METADATA"]
    assert sorted(path.parent.name for path in own) == ["acme", "acme-1.0.dist-info"]
    assert decode(CONFIG, object="x", field="p") == GpuConfig(isolation="acme")
    assert node_policy(["acme"]) == IsolationPolicy(("acme",))
    assert backends().get("acme") is not None


def test_it_is_published_allocated_and_prepared(
    installed: Path, tmp_path: Path, discovery: Discovery
) -> None:
    policy = node_policy(["acme"]).among(backends())
    node = PluginNode(tmp_path, inventory_of(discovery, offering=Offering(isolation=policy)))
    attributes = node.inventory.attributes(GPU_0)
    assert attributes["koordra.io/isolationAcme"] is True

    wanted = machines.claim(
        "c",
        machines.request("gpu", capacity={"memory": "1Gi"}),
        configs=[machines.config("GpuConfig", isolation="acme")],
    )
    devices = [machines.gpu(0, place=machines.place(0), isolationNone=False, isolationAcme=True)]
    found = plan([*machines.device_classes(), machines.node(), machines.slice_of(devices), wanted])
    assert "default/c" in found.allocations

    asks = claim(1, gpu("gpu", GPU_0, "1Gi"), config=[parameters("GpuConfig", isolation="acme")])
    prepare(node, asks)
    assert node.record(uid(1))["devices"][0]["env"]["ACME_LIMIT"] == str(1 << 30)


WET = "raise RuntimeError('the library is away')"
PREPARES = 'return Realised(ContainerEdits(env=(("ACME_LIMIT", str(share.memory_bytes)),)))'
RAISING = BACKEND.replace("pass", WET).replace(PREPARES, WET)


def node_with(installed: Path, source: str, discovery: Discovery) -> PluginNode:
    """A node with this backend, a claim of it and one of koordra's."""
    (installed / "acme/__init__.py").write_text(source)
    policy = node_policy(["acme"]).among(backends())
    node = PluginNode(installed.parent, inventory_of(discovery, offering=Offering(isolation=policy)))
    dusted = [parameters("GpuConfig", isolation="acme")]
    node.claims.put(claim(1, gpu("gpu", GPU_0, "1Gi"), config=dusted))
    node.claims.put(claim(2, gpu("gpu", GPU_1)))
    return node


def test_one_that_raises_is_an_error_of_its_claims_alone(installed: Path, discovery: Discovery) -> None:
    node = node_with(installed, RAISING, discovery)
    plugin = node.plugin()
    with pytest.raises(PrepareError, match=r"acme: prepare of claim .* failed in acme:Acme: Runtime"):
        plugin.prepare(ref_of(node.claims.get("team-a", "claim-1")))
    assert plugin.prepare(ref_of(node.claims.get("team-a", "claim-2")))
    with pytest.raises(PrepareError, match="the library is away"):
        plugin.unprepare(ref_of(node.claims.get("team-a", "claim-1")))
    node.plugin()  # a start gets through, with what could not be rolled back
    plugin.unprepare(ref_of(node.claims.get("team-a", "claim-2")))


NONSENSE = [
    "None",
    "'edits'",
    "ContainerEdits()",
    "1 / 0",
    "Realised(None)",
    "Realised(uuid=7)",
    "Realised(nodes=('/dev/dust',))",
    "Realised(ContainerEdits(env=None))",
    "Realised(ContainerEdits(env=(('ACME_LIMIT', 7),)))",
    "Realised(ContainerEdits(env='ACME_LIMIT'))",
    "Realised(ContainerEdits(mounts=('/dust',)))",
    "Realised(ContainerEdits(device_nodes=(object(),)))",
    "Realised(ContainerEdits(additional_gids=('dust',)))",
    "keep('dust')",
    "keep([('dust', 7)])",
    "exit(3)",
    "__import__('os').read(-1, 1)",
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_one_that_answers_nonsense_is_refused_in_words(
    installed: Path, discovery: Discovery, answer: str
) -> None:
    source = BACKEND.replace(PREPARES, f"return {answer}")
    node = node_with(installed, source, discovery)
    with pytest.raises(PrepareError, match=r"prepare of claim .* failed in acme:Acme"):
        node.plugin().prepare(ref_of(node.claims.get("team-a", "claim-1")))
    assert not node.holders()


def test_one_that_refuses_in_its_own_words_is_quoted(installed: Path, discovery: Discovery) -> None:
    source = BACKEND.replace(PREPARES, "raise PrepareError('isolation acme: no dust left')")
    node = node_with(installed, f"from koordra.errors import PrepareError\n{source}", discovery)
    with pytest.raises(PrepareError) as refused:
        node.plugin().prepare(ref_of(node.claims.get("team-a", "claim-1")))
    assert str(refused.value) == "isolation acme: no dust left"
    assert not node.holders()


def test_one_that_hangs_is_left_alone_and_holds_nobody_else_up(
    installed: Path, discovery: Discovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_calls, "ANSWERS_WITHIN", 0.5)
    hanging = f"import threading\nwoken = threading.Event()\n{BACKEND}".replace(
        PREPARES, f"woken.wait()\n        keep((('dust', 'late'),))\n        {PREPARES}"
    )
    node = node_with(installed, hanging, discovery)
    plugin = node.unrepaired(patience=0.05, run=card_calls.answered)
    dusted, other = (ref_of(node.claims.get("team-a", f"claim-{number}")) for number in (1, 2))
    with pytest.raises(PrepareError, match=r"isolation acme: prepare of claim .*: no answer within"):
        plugin.prepare(dusted)
    for call in (plugin.prepare, plugin.unprepare):
        with pytest.raises(PrepareError, match=r"prepare of claim .* has not returned yet"):
            call(dusted)
    assert plugin.prepare(other)
    before = node.paths.checkpoint.read_bytes()
    sys.modules["acme"].woken.set()
    deadline = time.monotonic() + PATIENCE
    while any(thread.name == "isolation-call" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert node.paths.checkpoint.read_bytes() == before, "a call that was given up writes nothing down"
    assert plugin.prepare(dusted).devices[0].journal == (("dust", "late"),)
    plugin.unprepare(dusted)
    assert node.holders() == {other.uid}


@pytest.mark.parametrize(
    "source",
    [
        "1 / 0",
        "exit(3)",
        BACKEND.replace(
            'name = "acme"',
            "def __init__(self):\n        __import__('threading').Event().wait()",
        ),
        BACKEND.replace('name = "acme"', "name = None"),
        BACKEND.replace('name = "acme"', "def __init__(self):\n        exit(3)"),
        BACKEND.replace('name = "acme"', "name = property(lambda self: 1 / 0)"),
        BACKEND.replace("(IsolationBackend)", ""),
        BACKEND.replace("def unprepare", "def undo"),
        BACKEND.replace('name = "acme"', 'name, capabilities = "acme", "all"'),
    ],
    ids=[
        "raises",
        "exits",
        "hangs",
        "nameless",
        "exits-when-made",
        "raises-its-name",
        "no-backend",
        "incomplete",
        "nonsense-of-itself",
    ],
)
def test_one_that_cannot_be_loaded_is_not_known(
    installed: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(card_calls, "ANSWERS_WITHIN", 0.5)
    (installed / "acme/__init__.py").write_text(source)
    assert "acme" not in backends()


def test_one_that_raises_does_not_keep_a_recovered_claim_of_others_from_ending(
    installed: Path, discovery: Discovery
) -> None:
    """With the checkpoint it is lost whose share it is, so that all are told to stop it."""
    node = node_with(installed, RAISING, discovery)
    other = ref_of(node.claims.get("team-a", "claim-2"))
    node.plugin().prepare(other)
    node.paths.checkpoint.unlink()
    with capture_logs() as lines:
        node.plugin().unprepare(other)
    assert not node.holders()
    (line,) = [line for line in lines if line["event"] == "isolation_not_undone"]
    assert "the library is away" in line["error"]
