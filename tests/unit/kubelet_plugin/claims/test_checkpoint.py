"""The checkpoint: what is written is read, anything else is refused; and how the node goes on without one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import stat
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import CheckpointError, PrepareError
from koordra.kubelet_plugin.claims import checkpoint as checkpoint_module
from koordra.kubelet_plugin.claims.checkpoint import (
    Checkpoint,
    CheckpointFile,
    DamagedCheckpoint,
    OtherVersion,
    decode,
    encode,
    recover_record,
    texts_of,
)
from koordra.kubelet_plugin.claims.claim_record import (
    CLAIM_RECORD,
    ClaimRecord,
    ContainerEdits,
    DeviceRecord,
    Hook,
    Mount,
    State,
)
from koordra.kubelet_plugin.isolation.backend import Keep, Realised, Share
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.node_state.claim_network import NetworkKind, NetworkPlan
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import Codec
from koordra.topology.location import DeviceNode
from tests.fakes.disks import FailingDisk
from tests.fakes.in_place_of_files import IN_PLACE_OF_A_FILE
from tests.fakes.node_claims import GPU_0, GPU_1, GPU_2, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of

text = st.text(max_size=12)
name = st.text(min_size=1, max_size=12)
optional = st.none() | text
nodes = st.builds(
    DeviceNode,
    path=text.map("/{}".format),
    major=st.integers(0, 4095),
    minor=st.integers(0, 1 << 20),
    type=st.sampled_from("cb"),
)
pairs = st.dictionaries(text, text, max_size=3).map(lambda found: tuple(sorted(found.items())))
devices = st.builds(
    DeviceRecord,
    request=name,
    device=name,
    type=st.sampled_from(["gpu", "mig", "nic", "vf"]),
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
        hooks=st.lists(st.builds(Hook, text, text, st.lists(text, max_size=2).map(tuple)), max_size=2).map(
            tuple
        ),
    ),
    network=st.none()
    | st.builds(
        NetworkPlan,
        kind=st.sampled_from(NetworkKind),
        bus_id=text,
        host_interface=text,
        interface=text,
        ib_device=optional,
        addresses=st.lists(text, max_size=2).map(tuple),
        routes=st.lists(st.tuples(text, text), max_size=2).map(tuple),
        mtu=st.none() | st.integers(68, 9000),
        pkey=st.none() | st.integers(1, 9),
        cni=optional,
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
    pods=st.lists(text, max_size=2).map(tuple),
    pod_claim=optional,
)


def written(checkpoint: Checkpoint) -> bytes:
    return encode(texts_of(checkpoint, known={}))


@given(st.lists(records, max_size=3, unique_by=lambda record: record.ref.uid))
def test_what_is_written_is_read(claims: list[ClaimRecord]) -> None:
    checkpoint = Checkpoint()
    for record in claims:
        checkpoint = checkpoint.with_claim(record)
    again = decode(written(checkpoint))
    assert again == checkpoint
    assert written(again) == written(checkpoint)


@given(records, st.data())
def test_a_changed_byte_is_noticed_or_changes_nothing(record: ClaimRecord, data: st.DataObject) -> None:
    checkpoint = Checkpoint((record,))
    changed = bytearray(written(checkpoint))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        assert decode(bytes(changed)) == checkpoint


@given(records, st.integers(0, 400))
def test_a_cut_file_is_noticed(record: ClaimRecord, length: int) -> None:
    whole = written(Checkpoint((record,)))
    with pytest.raises(CheckpointError):
        decode(whole[: min(length, len(whole) - 2)])


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda j: json.dumps(j).encode())
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode(data)


def test_unknown_versions_and_unknown_fields_are_refused() -> None:
    document = json.loads(written(Checkpoint()))
    for newer in ({**document, "version": "v3"}, {"version": "v3", "more": 1}):
        with pytest.raises(OtherVersion, match="it has version v3; this program knows v2"):
            decode(json.dumps(newer).encode())
    for other in (
        {**document, "more": 1},
        {"version": "v2"},
        {**document, "version": 3},
        {"versions": {}},
        [],
    ):
        with pytest.raises(DamagedCheckpoint, match="not a checkpoint"):
            decode(json.dumps(other).encode())


def signed(data: object) -> bytes:
    """A file whose checksum is right."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    checksum = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return json.dumps({"version": "v2", "checksum": checksum, "data": data}).encode()


def test_a_file_with_a_right_checksum_is_read_strictly(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    (one,) = json.loads(node.paths.checkpoint.read_bytes())["data"]["claims"]
    assert decode(signed({"claims": [one]})) == node.checkpoint()
    nameless = {**one, "claim": {**one["claim"], "uid": "../etc"}}
    for data, why in (
        (5, "malformed: data: expected dict"),
        ({}, r"malformed: data\.claims: missing"),
        ({"claims": [{**one, "more": 1}]}, r"data\.claims\[0\]\.more: not a field"),
        ({"claims": [{**one, "pool": 5}]}, r"data\.claims\[0\]\.pool: expected str"),
        ({"claims": [one, one]}, "in it twice"),
        ({"claims": [nameless]}, "no valid uid"),
    ):
        with pytest.raises(CheckpointError, match=why):
            decode(signed(data))


def test_what_is_remembered_never_stands_for_what_is_on_disk(node: PluginNode) -> None:
    """Two instances overlap, each remembers what it wrote last; and the text is that of a program that
    remembers nothing."""
    one, other = (CheckpointFile(node.paths.checkpoint, Disk()) for _ in range(2))
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    (record,) = node.checkpoint().claims
    one.save(Checkpoint((record,)))
    assert one.load() == other.load() == Checkpoint((record,))
    changed = record.rolled_back()
    other.save(Checkpoint((changed,)))
    assert one.load() == Checkpoint((changed,))
    one.save(Checkpoint((record,)))
    data = node.paths.checkpoint.read_bytes()
    assert data == written(Checkpoint((record,)))
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    node.paths.checkpoint.write_bytes(data.replace(b'"memlock"', b'"memlocK"'))
    with pytest.raises(CheckpointError, match="is unreadable"):
        one.load()


def test_nobody_else_reads_the_checkpoint_or_the_copy_of_an_unreadable_one(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    assert stat.S_IMODE(node.paths.checkpoint.stat().st_mode) == 0o600
    node.paths.checkpoint.write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"a copy is kept as .*unreadable-"):
        CheckpointFile(node.paths.checkpoint, Disk()).load()
    (copy,) = node.paths.checkpoint.parent.glob("*.unreadable-*")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_an_unreadable_checkpoint_is_told_although_no_copy_can_be_kept(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.paths.checkpoint.write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"a copy is kept as nothing \(No space left on device\)"):
        CheckpointFile(node.paths.checkpoint, FailingDisk(full=True)).load()


def test_a_save_encodes_the_claims_that_changed_and_a_load_decodes_what_others_wrote(
    node: PluginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, since the kubelet waits: a node of 100 claims must not encode 100 claims for each Prepare."""
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    (one,) = node.checkpoint().claims
    others = [replace(one, ref=replace(one.ref, uid=f"other-{at}")) for at in range(5)]
    encoded: list[str] = []

    def counted(record: ClaimRecord) -> Any:
        encoded.append(record.ref.uid)
        return CLAIM_RECORD.write(record)

    monkeypatch.setattr(checkpoint_module, "CLAIM_RECORD", Codec(CLAIM_RECORD.read, counted))
    file = CheckpointFile(node.paths.checkpoint, Disk())
    file.save(Checkpoint(tuple(others)))
    encoded.clear()
    file.save(Checkpoint((one, *others)))
    assert set(encoded) == {one.ref.uid}
    encoded.clear()
    file.save(Checkpoint((one,)))
    assert encoded == []
    file.save(Checkpoint((one, *others)))
    assert set(encoded) == {other.ref.uid for other in others}  # claims that are gone are not remembered
    monkeypatch.setattr(checkpoint_module, "decode", lambda data: pytest.fail("it wrote this itself"))
    assert file.load() == Checkpoint((one, *others))


def damage(node: PluginNode) -> bytes:
    damaged = node.paths.checkpoint.read_bytes()[:-100] + b"?" * 100
    node.paths.checkpoint.write_bytes(damaged)
    return damaged


@pytest.mark.parametrize("loss", ["damaged", "missing"])
def test_a_lost_checkpoint_is_put_together_from_the_records_for_the_hook(node: PluginNode, loss: str) -> None:
    for number, device in ((1, GPU_0), (2, GPU_1)):
        node.claims.put(claim(number, gpu("gpu", device, "10Gi")))
        node.plugin().prepare(ref_of(claim(number)))
    answer = node.plugin().prepare(ref_of(claim(1)))
    nonce = node.record(uid(1))["nonce"]
    files = {path: path.read_bytes() for path in node.paths.cdi.iterdir()}
    if loss == "damaged":
        damage(node)
    else:
        node.paths.checkpoint.unlink()

    plugin = node.plugin()
    assert {record.state for record in plugin.records()} == {State.RECOVERED}
    assert {path: path.read_bytes() for path in node.paths.cdi.iterdir()} == files
    assert len(list(node.paths.state.glob("checkpoint.json.unreadable-*"))) == (loss == "damaged")
    # How much of the card claim 1 has is not known, so nobody else gets any of it; another card is free.
    node.claims.put(claim(3, gpu("gpu", GPU_0, "1Gi")))
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        plugin.prepare(ref_of(claim(3)))
    node.claims.put(claim(4, gpu("gpu", GPU_2)))
    assert plugin.prepare(ref_of(claim(4)))
    # The kubelet asks again: the claim is an ordinary one once more, with its own nonce, and has only its
    # share.
    assert plugin.prepare(ref_of(claim(1))) == answer
    assert node.record(uid(1))["nonce"] == nonce
    assert plugin.prepare(ref_of(claim(3)))
    plugin.unprepare(ref_of(claim(2)))
    assert node.holders() == {uid(1), uid(3), uid(4)}


def test_a_recovered_claim_keeps_its_devices_against_another_allocation(node: PluginNode) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    node.paths.checkpoint.unlink()
    node.claims.put(claim(1, gpu("gpu", GPU_1)))
    with pytest.raises(PrepareError, match="it is still prepared here with gpu-0000-0f-00-0"):
        node.plugin().prepare(ref_of(claim(1)))


@pytest.mark.parametrize("what", IN_PLACE_OF_A_FILE)
def test_something_else_in_place_of_the_checkpoint_is_a_lost_one(node: PluginNode, what: str) -> None:
    """A link, a pipe, a device: nothing is read from there, nobody waits, and claims go on."""
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.paths.checkpoint.unlink()
    IN_PLACE_OF_A_FILE[what](node.paths.checkpoint)
    plugin = node.plugin()
    assert node.holders() == {uid(1)}
    node.claims.put(claim(2, gpu("gpu", GPU_1)))
    assert plugin.prepare(ref_of(claim(2)))
    assert plugin.prepare(ref_of(claim(1)))
    assert node.paths.checkpoint.lstat().st_mode == stat.S_IFREG | 0o600


def test_what_cannot_be_accounted_for_fails_closed_until_it_is_gone(node: PluginNode) -> None:
    for number, device in ((1, GPU_0), (2, GPU_1)):
        node.claims.put(claim(number, gpu("gpu", device)))
        node.plugin().prepare(ref_of(claim(number)))
    damaged = damage(node)
    node.paths.prepared_file(uid(1)).write_text("{")

    plugin = node.plugin()
    for number in (1, 2, 3):
        node.claims.put(claim(number, gpu("gpu", GPU_2 if number == 3 else GPU_0)))
        with pytest.raises(CheckpointError, match=r"checkpoint.json is unreadable .* drain the node"):
            plugin.prepare(ref_of(claim(number)))
    copies = list(node.paths.state.glob("checkpoint.json.unreadable-*"))
    assert [copy.read_bytes() for copy in copies] == [damaged]

    # Its pod ends: its files go, and with them the last thing that was not known.
    plugin.unprepare(ref_of(claim(1)))
    assert not node.paths.cdi_file(uid(1)).exists()
    assert node.holders() == {uid(2)}
    assert plugin.prepare(ref_of(claim(3)))


def test_a_checkpoint_of_another_version_is_left_to_the_koordra_that_wrote_it(node: PluginNode) -> None:
    """The records for the hook would do for a recovery, but not for what the other version knows besides."""
    node.claims.put(claim(1, gpu("gpu", GPU_0, "10Gi")))
    node.plugin().prepare(ref_of(claim(1)))
    newer = node.paths.checkpoint.read_bytes().replace(b'"v2"', b'"v3"')
    node.paths.checkpoint.write_bytes(newer)

    plugin = node.plugin()
    node.claims.put(claim(2, gpu("gpu", GPU_1)))
    with pytest.raises(CheckpointError) as refused:
        plugin.prepare(ref_of(claim(2)))
    for word in (
        str(node.paths.checkpoint),
        "version v3",
        "run the version of koordra that wrote it",
        "drain",
    ):
        assert word in str(refused.value)
    with pytest.raises(CheckpointError, match="version v3"):
        plugin.records()
    assert node.paths.checkpoint.read_bytes() == newer
    assert node.paths.cdi_file(uid(1)).exists()

    # The node is drained: nothing is held any more, and it starts anew.
    plugin.unprepare(ref_of(claim(1)))
    assert plugin.prepare(ref_of(claim(2)))
    assert node.holders() == {uid(2)}
    assert [copy.read_bytes() for copy in node.paths.state.glob("*.unreadable-*")] == [newer]


@pytest.mark.parametrize("kind", ["", "c", "b", "u", "p"])
def test_device_nodes_of_every_kind_that_cdi_has_are_read_again(node: PluginNode, kind: str) -> None:
    """Isolation backends of others give them to containers: the checkpoint that holds one is not damaged."""
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    (record,) = node.checkpoint().claims
    edits = ContainerEdits(device_nodes=(DeviceNode("/dev/fuse", 10, 229, kind),))
    given = Checkpoint((replace(record, devices=(replace(record.devices[0], edits=edits),)),))
    assert decode(written(given)) == given


def test_a_wiped_state_directory_does_not_pass_for_a_clean_start(node: PluginNode) -> None:
    """The CDI file on tmpfs proves that its claim was prepared in this boot: a container may hold the
    card."""
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


@given(st.binary(max_size=300))
def test_any_bytes_in_place_of_a_record_for_the_hook_are_no_claim(data: bytes) -> None:
    assert recover_record(uid(1), data, pool="node-a", boot_id="b") is None


def test_a_record_under_the_name_of_another_claim_is_nobodys(node: PluginNode) -> None:
    """Or one claim would be given what the other holds."""
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    data = node.paths.prepared_file(uid(1)).read_bytes()
    found = recover_record(uid(1), data, pool="node-a", boot_id="b")
    assert found is not None
    assert [device.device for device in found.devices] == [GPU_0]
    assert recover_record(uid(2), data, pool="node-a", boot_id="b") is None
    empty = json.dumps({**json.loads(data), "devices": []}).encode()
    assert recover_record(uid(1), empty, pool="node-a", boot_id="b") is None


def test_a_share_that_cannot_be_ended_is_not_given_back(
    node: PluginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows any more whose share it is: the next claim would have the card beside the old one."""
    prepare(node, claim(1, gpu("gpu", GPU_0, "10Gi")))
    plugin = node.plugin()
    damage(node)
    node.paths.prepared_file(uid(1)).write_text("{")

    def refuse(self: NoIsolation, share: Share) -> None:
        raise PrepareError(f"{share.device} is busy")

    with monkeypatch.context() as context:
        context.setattr(NoIsolation, "unprepare", refuse)
        with pytest.raises(PrepareError, match="is busy"):
            plugin.unprepare(ref_of(claim(1)))
    assert node.paths.cdi_file(uid(1)).exists()
    plugin.unprepare(ref_of(claim(1)))
    assert not node.paths.cdi_file(uid(1)).exists()


def test_a_claim_that_is_prepared_again_has_its_share_made_ready_again(
    node: PluginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps it may have been lost since, a file of limits, say."""
    started: list[str] = []
    made = NoIsolation.prepare

    def noted(self: NoIsolation, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        started.append(share.device)
        return made(self, share, config, keep)

    monkeypatch.setattr(NoIsolation, "prepare", noted)
    for _ in range(2):
        prepare(node, claim(1, gpu("gpu", GPU_0, "10Gi")))
    assert started == [GPU_0, GPU_0]


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
