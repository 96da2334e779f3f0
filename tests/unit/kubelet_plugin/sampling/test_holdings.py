"""Who has how much of the node's GPUs, and for how long: cards, shares, MIG instances, annotated pods."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.kubelet_plugin.sampling.holdings import (
    FORGOTTEN,
    Amount,
    GrantOf,
    HeldTime,
    Payer,
    Place,
    amount_of,
    grants_of,
    held_gpus,
    units_of,
)
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.granted_claims import ContainerName, GrantedContainer, HeldDevice
from tests.machines import catalogue

MACHINE = catalogue.machine("hgx-h100")
FIRST, SECOND = MACHINE.gpus[:2]
UNITS = units_of(MACHINE)
GIB = 1 << 30
ALL = (FIRST.memory_bytes or 0) >> 20 << 20


def uid(number: int) -> str:
    return f"8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c{number:02d}"


def record(number: int, *devices: DeviceRecord, namespace: str = "team") -> ClaimRecord:
    ref = ClaimRef(namespace=namespace, name=f"claim-{number}", uid=uid(number))
    return ClaimRecord(ref, "node-a", "0" * 32, "boot", State.COMPLETED, devices)


def whole(device: str, *, admin: bool = False) -> DeviceRecord:
    return DeviceRecord("r", device, "gpu", admin_access=admin)


def share(device: str, memory: str, cores: str) -> DeviceRecord:
    return DeviceRecord("r", device, "gpu", share_id="s", consumed=(("cores", cores), ("memory", memory)))


def holder(pod: str, *held: HeldDevice, container: str = "train") -> GrantedContainer:
    return GrantedContainer(ContainerName("team", pod, container), (), held)


def of(number: int, device: DeviceRecord) -> HeldDevice:
    return HeldDevice(device.device, uid(number), f"claim-{number}", device.share_id)


def test_a_container_is_shown_with_what_each_of_its_claims_grants() -> None:
    card, part = whole(FIRST.name), share(SECOND.name, "20Gi", "10")
    records = [record(1, card), record(2, part)]
    found = grants_of([holder("a", of(1, card), of(2, part))], records, UNITS)
    name = ContainerName("team", "a", "train")
    assert found == {
        GrantOf(name, "claim-1", FIRST.name, Place(str(FIRST.uuid))): Amount(ALL, 100),
        GrantOf(name, "claim-2", SECOND.name, Place(str(SECOND.uuid))): Amount(20 * GIB, 10),
    }


@pytest.mark.parametrize(
    ("consumed", "wanted"),
    [
        ((("memory", "20Gi"),), Amount(20 * GIB, 0)),
        ((("memory", str(ALL)),), Amount(ALL, 100)),
        ((("cores", "0"), ("memory", str(ALL))), Amount(ALL, 100)),
        ((("cores", "30"),), Amount(ALL, 30)),
        ((("cores", "30"), ("memory", "20Gi")), Amount(20 * GIB, 30)),
    ],
)
def test_a_share_says_how_much_of_each(consumed: tuple[tuple[str, str], ...], wanted: Amount) -> None:
    device = DeviceRecord("r", FIRST.name, "gpu", share_id="s", consumed=consumed)
    assert amount_of(UNITS[FIRST.name], device) == wanted


def test_a_share_of_which_no_record_says_how_much_is_all_of_it() -> None:
    """As after a lost checkpoint: it keeps everybody else off."""
    part = share(FIRST.name, "20Gi", "10")
    (found,) = grants_of([holder("a", of(1, part))], [], UNITS).values()
    assert found == Amount(ALL, 100)


def test_a_pod_of_koordinators_is_shown_by_its_annotation_without_a_claim() -> None:
    annotated = HeldDevice(FIRST.name, "pod-uid", cores=25, memory=50)
    both = [holder("k", annotated), holder("k", annotated, container="sidecar")]
    assert {(row.name.container, row.claim): each for row, each in grants_of(both, [], UNITS).items()} == {
        ("train", ""): Amount(ALL // 2, 25),
        ("sidecar", ""): Amount(ALL // 2, 25),
    }
    assert held_gpus(both, [], UNITS) == {Payer("team", "share", "H100"): 0.5}, "once, as the pod has it"


def test_a_claim_counts_once_however_many_hold_it_and_from_prepare_on() -> None:
    card, part = whole(FIRST.name), share(SECOND.name, f"{ALL // 4 >> 20}Mi", "50")
    records = [record(1, card), record(2, part, namespace="other"), record(3, whole(SECOND.name, admin=True))]
    held = held_gpus([holder("a", of(1, card)), holder("b", of(1, card))], records, UNITS)
    assert held == {Payer("team", "gpu", "H100"): 1.0, Payer("other", "share", "H100"): 0.5}
    assert held_gpus([], records, UNITS) == held


def test_a_mig_instance_is_its_part_of_the_card() -> None:
    machine = catalogue.machine("mig-a100")
    card = next(gpu for gpu in machine.gpus if len(gpu.mig_instances) > 1)
    one = next(mig_devices(card))
    assert one.instance is not None
    device = DeviceRecord("r", one.name, "mig")
    units = units_of(machine)
    (row,) = grants_of([holder("m", of(1, device))], [record(1, device)], units)
    assert row.place == Place(str(card.uuid), str(one.instance.gpu_instance))
    ((payer, part),) = held_gpus([], [record(1, device)], units).items()
    assert payer == Payer("team", "mig", "A100")
    assert part == pytest.approx(max(one.cores / 100, one.profile.memory_bytes / (card.memory_bytes or 1)))


def test_what_the_node_has_no_more_is_nobodys() -> None:
    gone = whole("gpu-0000-ff-00-0")
    assert grants_of([holder("a", of(1, gone))], [record(1, gone)], UNITS) == {}
    assert held_gpus([], [record(1, gone)], UNITS) == {}


A, B = Payer("a", "gpu", "H100"), Payer("b", "share", "H100")


def test_time_is_put_down_to_whom_held_the_card_since_the_last_look() -> None:
    time = HeldTime()
    assert time.seconds({A: 2.0}, at=100) == {A: 0.0}, "a series begins at 0, so that no increase is lost"
    assert time.seconds({A: 2.0, B: 0.25}, at=105) == {A: 10.0, B: 0.0}
    assert time.seconds({B: 0.25}, at=109) == {A: 18.0, B: 1.0}
    assert time.seconds({B: 0.25}, at=109 + FORGOTTEN) == {A: 18.0, B: 1.0 + FORGOTTEN / 4}
    assert time.seconds({B: 0.25}, at=110 + FORGOTTEN) == {B: 1.25 + FORGOTTEN / 4}
    assert time.seconds({A: 1.0, B: 0.25}, at=114 + FORGOTTEN)[A] == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.dictionaries(st.sampled_from([A, B]), st.integers(0, 8))),
        min_size=1,
        max_size=40,
    )
)
def test_every_gpu_second_is_somebodys_once(looks: list[tuple[int, dict[Payer, int]]]) -> None:
    time, at, wanted = HeldTime(), 0, 0
    before: dict[Payer, int] = {}
    for seconds, held in looks:
        at += seconds
        wanted += seconds * sum(before.values())
        before = held
        found = time.seconds({payer: float(gpus) for payer, gpus in held.items()}, at=at)
    assert sum(found.values()) == wanted


def test_a_card_in_mig_mode_is_no_unit() -> None:
    card = replace(FIRST, mig_enabled=True)
    assert FIRST.name not in units_of(replace(MACHINE, gpus=(card,)))
