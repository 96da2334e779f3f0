"""The checkpoint: what is written is read, anything else is refused; and how the node goes on without one."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.checkpoint import Checkpoint, decode, encode
from koordra.kubelet_plugin.container_edits import ContainerEdits, Mount
from koordra.kubelet_plugin.records import ClaimRecord, ClaimRef, DeviceRecord, State
from koordra.topology.machine import DeviceNode
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

text = st.text(max_size=12)
optional = st.none() | text
nodes = st.builds(
    DeviceNode,
    path=text,
    major=st.integers(0, 4095),
    minor=st.integers(0, 1 << 20),
    type=st.sampled_from("cb"),
)
pairs = st.dictionaries(text, text, max_size=3).map(lambda found: tuple(sorted(found.items())))
devices = st.builds(
    DeviceRecord,
    request=text,
    device=text,
    type=text,
    identity=text,
    share_id=optional,
    admin_access=st.booleans(),
    consumed=pairs,
    isolation=optional,
    uuid=optional,
    ib_device=optional,
    netdev=optional,
    numa_node=st.none() | st.integers(0, 7),
    cpus=optional,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    edits=st.builds(
        ContainerEdits,
        env=st.lists(st.tuples(text, text), max_size=3).map(tuple),
        device_nodes=st.lists(nodes, max_size=2).map(tuple),
        mounts=st.lists(st.builds(Mount, text, text, st.lists(text, max_size=2).map(tuple)), max_size=2).map(
            tuple
        ),
    ),
)
refs = st.builds(
    ClaimRef,
    namespace=st.text(min_size=1, max_size=5),
    name=st.text(min_size=1, max_size=5),
    uid=st.from_regex(r"[0-9a-z]([0-9a-z-]{0,8}[0-9a-z])?", fullmatch=True),
)
records = st.builds(
    ClaimRecord,
    ref=refs,
    pool=text,
    nonce=text,
    boot_id=text,
    state=st.sampled_from(State),
    devices=st.lists(devices, max_size=2).map(tuple),
    memlock=st.booleans(),
)


@given(st.lists(records, max_size=3, unique_by=lambda record: record.ref.uid))
def test_what_is_written_is_read(claims: list[ClaimRecord]) -> None:
    checkpoint = Checkpoint()
    for record in claims:
        checkpoint = checkpoint.with_claim(record)
    again = decode(encode(checkpoint))
    assert again == checkpoint
    assert encode(again) == encode(checkpoint)


@given(records, st.data())
def test_a_changed_byte_is_noticed_or_changes_nothing(record: ClaimRecord, data: st.DataObject) -> None:
    checkpoint = Checkpoint((record,))
    written = bytearray(encode(checkpoint))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        assert decode(bytes(written)) == checkpoint


@given(records, st.integers(0, 400))
def test_a_cut_file_is_noticed(record: ClaimRecord, length: int) -> None:
    written = encode(Checkpoint((record,)))
    with pytest.raises(CheckpointError):
        decode(written[: min(length, len(written) - 2)])


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda j: json.dumps(j).encode())
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode(data)


def test_a_newer_version_and_unknown_fields_are_refused() -> None:
    document = json.loads(encode(Checkpoint()))
    with pytest.raises(CheckpointError, match="version 'v2'"):
        decode(json.dumps({**document, "version": "v2"}).encode())
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        decode(json.dumps({**document, "more": 1}).encode())


def test_unreadable_checkpoint_fails_closed_keeps_a_copy_and_starts_anew_when_nothing_is_left(
    node: PluginNode,
) -> None:
    for number, device in ((1, GPU_0), (2, GPU_1)):
        node.claims.put(claim(number, gpu("gpu", device)))
        node.plugin().prepare(ref_of(claim(number)))
    damaged = node.paths.checkpoint.read_bytes()[:-100] + b"?" * 100
    node.paths.checkpoint.write_bytes(damaged)

    plugin = node.plugin()
    for number in (1, 3):
        node.claims.put(claim(number, gpu("gpu", GPU_0)))
        with pytest.raises(CheckpointError, match=r"checkpoint.json is unreadable .* drain the node"):
            plugin.prepare(ref_of(claim(number)))
    copies = list(node.paths.state.glob("checkpoint.json.unreadable-*"))
    assert [copy.read_bytes() for copy in copies] == [damaged]

    # Pods end: their files go, and with the last of them the damage does.
    plugin.unprepare(ref_of(claim(1)))
    assert not node.paths.cdi_file(uid(1)).exists()
    assert node.paths.cdi_file(uid(2)).exists()
    with pytest.raises(CheckpointError):
        plugin.prepare(ref_of(claim(3)))
    plugin.unprepare(ref_of(claim(2)))
    plugin.prepare(ref_of(claim(3)))
    assert node.holders() == {uid(3)}
    assert len(list(node.paths.state.glob("checkpoint.json.unreadable-*"))) == 1


def test_missing_checkpoint_beside_prepared_claims_fails_closed(node: PluginNode) -> None:
    """Somebody removed it to be rid of an error: the containers are still there."""
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    node.paths.checkpoint.unlink()
    before = node.files()
    node.claims.put(claim(2, gpu("gpu", GPU_0)))
    with pytest.raises(CheckpointError, match="is missing, though claims are prepared on this node"):
        node.plugin().prepare(ref_of(claim(2)))
    assert node.files() == before
    node.plugin().unprepare(ref_of(claim(1)))
    node.plugin().prepare(ref_of(claim(2)))
    assert node.holders() == {uid(2)}


def test_a_wiped_state_directory_does_not_pass_for_a_clean_start(node: PluginNode) -> None:
    """The CDI file on tmpfs proves that its claim was prepared in this boot: a container may hold the card."""
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.claims.put(claim(2, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    shutil.rmtree(node.paths.state)
    wiped = node.plugin()
    assert node.paths.cdi_file(uid(1)).exists()
    with pytest.raises(CheckpointError, match="is missing, though claims are prepared"):
        wiped.prepare(ref_of(claim(2)))
    wiped.unprepare(ref_of(claim(1)))
    assert wiped.prepare(ref_of(claim(2)))


def test_files_that_somebody_removed_come_back(node: PluginNode) -> None:
    """The kubelet does not ask again for the claim of a pod whose container it starts again."""
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    state = node.plugin()
    state.prepare(ref_of(claim(1)))
    before = {
        path: path.read_bytes() for path in (node.paths.cdi_file(uid(1)), node.paths.prepared_file(uid(1)))
    }
    for path in before:
        path.unlink()
        state.restore_files()
        assert {path: path.read_bytes() for path in before} == before


def test_start_removes_our_stale_files_and_nobody_elses(node: PluginNode) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    kept = node.files()
    others = {
        "k8s.gpu.nvidia.com-claim_0c1a0009-7d1e-4c5a-9b9f-2f6a5c3d4e5f.yaml",
        "koordra.io-claim_NOT-OURS.json",
        "koordra.io-other_0c1a0009.json",
        "koordra.io-claim_0c1a0009.json.bak",
        "notes.tmp",
    }
    stale = {f"koordra.io-claim_{uid(9)}.json", f"koordra.io-claim_{uid(1)}.json.tmp"}
    for name in others | stale:
        (node.paths.cdi / name).write_text("{}")
    (node.paths.prepared / f"{uid(9)}.json").write_text("{}")
    (node.paths.prepared / "README").write_text("mine")
    node.plugin()
    assert node.files() == kept | {f"cdi/{name}" for name in others} | {"state/prepared/README"}
