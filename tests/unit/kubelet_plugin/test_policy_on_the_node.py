"""The operator's word on isolation and network, on a node that no webhook and no allocator of koordra's has
spared anything: every sentence of docs/isolation.md that Prepare and the hook have to keep by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from koordra._proto.nri import nri_pb2
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.errors import PrepareError, RemoteError
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.claim_ref import marker_of
from koordra.node_state.disk import Disk
from koordra.node_state.prepared_claim import PreparedClaim
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.oci import container_of
from koordra.nri.hook.plugin import HookPlugin
from koordra.nri.verify.bundles import Running
from koordra.nri.verify.drift import Expected, drift_of
from tests.fakes.node_claims import GPU_0, GPU_1, NIC_0, NODE, claim, gpu, nic, parameters, uid
from tests.unit.api.test_authority import OPERATORS, document
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal
from tests.unit.kubelet_plugin.test_isolation import given, limited
from tests.unit.nri.hook.test_plugin import CALL, request


def said(of: str, name: str, *, source: str = "FromClaim", requests: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = {key: value for key, value in document(of, name).items() if key not in ("apiVersion", "kind")}
    return parameters(of.partition(".")[0], requests=requests, source=source, **fields)


@pytest.mark.parametrize("requests", [(), ("gpu", "nic")], ids=["for all", "by name"])
@pytest.mark.parametrize(("of", "name"), OPERATORS)
def test_prepare_refuses_every_word_of_the_operators_in_a_claim(
    node: PluginNode, of: str, name: str, requests: tuple[str, ...]
) -> None:
    """Also beside a class that says the same: it is not the claim's to repeat."""
    for beside in ([], [said(of, name, source="FromClass")]):
        asks = claim(
            1,
            gpu("gpu", GPU_0, "10Gi"),
            nic("nic", NIC_0),
            config=[*beside, said(of, name, requests=requests)],
        )
        assert "is for the operator to say" in refusal(limited(node, "limiter"), asks)


DEFAULTS = [
    # node's allowed and default, class, claim -> what keeps the share
    (("limiter", "mps"), None, {}, {}, "limiter"),
    (("limiter", "mps"), "mps", {}, {}, "mps"),
    (("limiter", "mps"), "mps", {"defaultIsolation": "limiter"}, {}, "limiter"),
    (("limiter", "mps"), "mps", {"allowedIsolation": ["limiter"]}, {}, "limiter"),
    (("limiter", "mps"), None, {"defaultIsolation": "mps"}, {"isolation": "limiter"}, "limiter"),
    (("limiter", "mps"), None, {"isolation": "mps"}, {"isolation": "limiter"}, "mps"),
    (("none",), None, {"defaultIsolation": "none"}, {}, "none"),
]


@pytest.mark.parametrize(("allowed", "default", "of_class", "of_claim", "kept"), DEFAULTS)
def test_the_first_word_that_is_there_counts(
    node: PluginNode,
    allowed: tuple[str, ...],
    default: str | None,
    of_class: dict[str, Any],
    of_claim: dict[str, Any],
    kept: str,
) -> None:
    limited(node, *allowed)
    node.inventory = with_policy(node, IsolationPolicy(allowed, default))
    config = [parameters("GpuConfig", source="FromClass", **of_class)] if of_class else []
    config += [parameters("GpuConfig", **of_claim)] if of_claim else []
    prepare(node, claim(1, gpu("gpu", GPU_0, "10Gi"), config=config))
    assert given(node) == kept


def with_policy(node: PluginNode, policy: IsolationPolicy) -> Any:
    return replace(node.inventory, offering=Offering(isolation=policy))


@pytest.mark.parametrize(
    "of_class",
    [{"defaultIsolation": "none"}, {"isolation": "none"}, {"allowedIsolation": ["none"]}],
    ids=lambda fields: next(iter(fields)),
)
def test_no_word_of_a_class_makes_a_node_allow_what_it_does_not(
    node: PluginNode, of_class: dict[str, Any]
) -> None:
    config = [parameters("GpuConfig", source="FromClass", **of_class)]
    why = refusal(limited(node, "limiter"), claim(1, gpu("gpu", GPU_0, "10Gi"), config=config))
    assert "isolation: requested none, the node allows only limiter" in why


@pytest.mark.parametrize(("first", "second"), list(permutations(("none", "limiter", "mps"), 2)))
def test_one_card_is_kept_in_one_way(node: PluginNode, first: str, second: str) -> None:
    """Whatever its policy was before, over restarts of the plugin, and after the checkpoint was lost."""
    old = claim(1, gpu("gpu", GPU_0, "10Gi"))
    prepare(limited(node, first), old)
    limited(node, second)
    new = claim(2, gpu("gpu", GPU_0, "10Gi", share="s2"))
    node.claims.put(new)
    why = refusal(node, new)
    assert "a card is kept in one way at a time" in why
    node.paths.checkpoint.unlink()
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        node.plugin().prepare(ref_of(new))
    node.plugin().unprepare(ref_of(old))
    prepare(node, new)
    assert given(node, 2) == second


def prepared(node: PluginNode) -> tuple[HookPlugin, PreparedClaim, nri_pb2.CreateContainerRequest]:
    """The hook of a node with a limited share, and a container as CDI leaves it."""
    prepare(limited(node, "limiter"), claim(1, gpu("gpu", GPU_0, "10Gi")))
    DeviceGuardFile(node.paths.guarded, node=NODE, disk=Disk()).update(node.inventory.machine)
    state = StateReader(node.paths.state, node_name=NODE)
    record = state.claim(marker_of(uid(1)))
    assert record is not None
    genuine = ((record.marker, record.nonce), (f"{record.marker}_0", record.nonce))
    return (
        HookPlugin(state, ledger=Ledger(node.paths.state)),
        record,
        request(*record.devices[0].nodes, env=genuine, namespace="team-a"),
    )


def test_the_hook_sets_the_limits_that_prepare_decided_whatever_the_pod_says(node: PluginNode) -> None:
    hook, record, message = prepared(node)
    ((name, value),) = [each for each in record.devices[0].env if each[0].startswith("LIMIT")]
    message.container.env.append(f"{name}=1000000Gi 0")
    message.container.id = "c1"
    message.pod.annotations["koordra.io/isolation"] = "none"
    answer = hook.create_container(message, CALL)
    assert {entry.key: entry.value for entry in answer.adjust.env}[name] == value
    # One in which they were changed after all is a breach.
    changed = [(key, "x" if key == name else of) for key, of in hook.ledger.get("c1").env]  # type: ignore[union-attr]
    running = Running(container_of(message.pod, request(env=tuple(changed)).container))
    found = drift_of(running, Expected(hook.ledger.get("c1")))
    assert [drift.kind for drift in found if drift.breach] == ["EnvChanged"]


def test_a_share_is_opened_by_no_container_that_prepare_gave_nothing(node: PluginNode) -> None:
    """A neighbour's card, in a container with a claim of its own and in one without."""
    hook, record, message = prepared(node)
    plain = request(*record.devices[0].nodes, namespace="team-a")
    with pytest.raises(RemoteError, match="refuses"):
        hook.create_container(plain, CALL)
    card = node.inventory.machine.device(GPU_1)
    node_of = card.node  # type: ignore[union-attr]
    message.container.linux.devices.add(path=node_of.path, type="c", major=node_of.major, minor=node_of.minor)
    with pytest.raises(RemoteError, match="refuses"):
        hook.create_container(message, CALL)
