"""The operator's policy of isolation: which word a share gets, and when it is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from koordra.api.devices import Capacity
from koordra.api.opaque.isolation import (
    LIMITED,
    AskedIsolation,
    IsolationPolicy,
    asked_isolation,
    attribute,
    is_share,
    node_policy,
    published_policy,
)
from koordra.api.opaque.isolation_words import isolations
from koordra.api.opaque.parameters import GpuConfig, decode
from koordra.errors import InvalidInput, InvalidParameters

UNLIMITED = IsolationPolicy(("none",))
SEVERAL = IsolationPolicy(("limiter", "mps", "hami-core"), "mps")


def asked(of_class: dict[str, Any] | None = None, of_claim: dict[str, Any] | None = None) -> AskedIsolation:
    def found(fields: dict[str, Any] | None) -> list[GpuConfig]:
        return [] if fields is None else [GpuConfig(**fields)]

    return asked_isolation(found(of_class), found(of_claim))


@pytest.mark.parametrize(
    ("of_class", "of_claim", "node", "word"),
    [
        (None, None, LIMITED, "limiter"),
        (None, None, UNLIMITED, "none"),
        (None, None, SEVERAL, "mps"),
        (None, {"isolation": "limiter"}, SEVERAL, "limiter"),
        ({"isolation": "hami-core"}, {"isolation": "limiter"}, SEVERAL, "hami-core"),
        ({"allowed_isolation": ("hami-core", "mps")}, None, SEVERAL, "hami-core"),
        ({"allowed_isolation": ("hami-core", "mps"), "default_isolation": "mps"}, None, LIMITED, "mps"),
        ({"default_isolation": "limiter"}, None, SEVERAL, "limiter"),
        ({"default_isolation": "limiter"}, {"isolation": "mps"}, SEVERAL, "mps"),
    ],
)
def test_the_first_word_that_is_there(
    of_class: dict[str, Any] | None, of_claim: dict[str, Any] | None, node: IsolationPolicy, word: str
) -> None:
    assert asked(of_class, of_claim).on(node, share=True) == word


@pytest.mark.parametrize(
    ("of_class", "of_claim", "node", "told"),
    [
        (None, {"isolation": "none"}, LIMITED, "requested none, the node allows only limiter"),
        ({"isolation": "none"}, None, LIMITED, "requested none, the node allows only limiter"),
        ({"allowed_isolation": ("none",)}, None, LIMITED, "requested none, the node allows only limiter"),
        (None, {"isolation": "mps"}, UNLIMITED, "requested mps, the node allows only none"),
        (
            {"allowed_isolation": ("mps",)},
            {"isolation": "limiter"},
            SEVERAL,
            "requested limiter, the class allows only mps",
        ),
        (None, None, LIMITED.among(["none"]), "the node allows no share at all"),
    ],
)
def test_a_share_that_is_not_allowed_is_refused_with_both_words(
    of_class: dict[str, Any] | None, of_claim: dict[str, Any] | None, node: IsolationPolicy, told: str
) -> None:
    assert told in str(asked(of_class, of_claim).refusal(node, share=True))


@pytest.mark.parametrize("word", ["mps", "timeslicing"])
def test_what_is_done_to_a_whole_card_is_nothing_for_an_instance_of_it(word: str) -> None:
    allowing = IsolationPolicy((word, "mig"))
    refused = asked(None, {"isolation": word}).refusal(allowing, share=False, instance=True)
    assert str(refused) == (
        f"isolation: requested {word}, which is done to a whole card, and this is an MIG instance; "
        "leave isolation out, or ask for a share of a card"
    )
    assert asked(None, {"isolation": word}).refusal(allowing, share=True) is None
    assert asked(None, None).refusal(allowing, share=False, instance=True) is None
    assert asked(None, {"isolation": "mig"}).refusal(allowing, share=False, instance=True) is None


def test_a_whole_card_needs_no_isolation_and_a_backend_that_it_asks_for_has_to_be_allowed() -> None:
    assert asked().on(LIMITED, share=False) == "none"
    assert asked().refusal(LIMITED, share=False) is None
    assert asked(None, {"isolation": "none"}).refusal(LIMITED, share=False) is None
    assert asked(None, {"isolation": "mps"}).refusal(LIMITED, share=False)


@pytest.mark.parametrize("policy", [LIMITED, UNLIMITED, SEVERAL, LIMITED.among(())])
def test_what_a_node_publishes_is_read_back(policy: IsolationPolicy) -> None:
    attributes = policy.attributes()
    assert all(name.startswith("koordra.io/") and len(name.partition("/")[2]) <= 32 for name in attributes)
    found = published_policy(attributes)
    assert found is not None
    assert set(found.allowed or ()) == set(policy.allowed or ())
    assert attribute("hami-core") == "koordra.io/isolationHamiCore"


def test_what_is_left_with_the_backends_that_are_there() -> None:
    assert SEVERAL.among(["limiter", "mps"]) == IsolationPolicy(("limiter", "mps"), "mps")
    assert SEVERAL.among(["limiter", "none"]) == IsolationPolicy(("limiter",))
    assert IsolationPolicy().among(["limiter"]) == IsolationPolicy(())


CARD = {"memory": Capacity(Decimal(80), "80"), "slots": Capacity(Decimal(10), "10")}


@pytest.mark.parametrize(
    ("consumed", "share"),
    [
        ({"memory": 79, "slots": 1}, True),
        ({"memory": 80, "slots": 1}, False),
        ({"memory": 1, "slots": 10}, False),
        ({"memory": 81, "slots": 1}, False),
        ({"memory": 79}, True),
        ({"slots": 9}, True),
        ({"slots": 10}, False),
        ({"cores": 100}, True),
        ({}, True),
    ],
)
def test_who_has_all_of_a_card_is_alone_there(consumed: dict[str, int], share: bool) -> None:
    amounts = {name: Decimal(amount) for name, amount in consumed.items()}
    assert is_share(amounts, CARD) is share
    assert is_share(amounts, {}), "of a card that publishes no amounts nobody knows"


def test_a_node_that_publishes_no_policy_has_none() -> None:
    assert published_policy({"koordra.io/type": "gpu"}) is None


def test_a_nodes_policy_holds_together() -> None:
    assert node_policy([]) == LIMITED
    assert node_policy(["none"]).word == "none"
    assert node_policy(["hami-core", "limiter"], "limiter").word == "limiter"
    assert node_policy(["mps", "mig"]).word == "mps"
    for allowed, default, told in (
        (["none", "limiter"], None, "none beside limiter: a card is kept in one way at a time"),
        (["limiter", "mig", "mps"], None, "limiter beside mps: a card is kept in one way at a time"),
        (["timeslicing", "mps"], None, "timeslicing beside mps: a card is kept in one way at a time"),
        (["limitr"], None, "no backend is called 'limitr'"),
        (["limiter"], "mps", "mps is not among limiter"),
    ):
        with pytest.raises(InvalidInput, match=told):
            node_policy(allowed, default)


def gpu_config(*, in_claim: bool = False, **fields: Any) -> Any:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", **fields}
    return decode(body, object="x", field="p", in_claim=in_claim)


def test_the_fields_of_a_class() -> None:
    found = gpu_config(allowedIsolation=["mps", "limiter"], defaultIsolation="limiter")
    assert found == GpuConfig(allowed_isolation=("mps", "limiter"), default_isolation="limiter")
    with pytest.raises(InvalidParameters, match="is for the operator to say"):
        gpu_config(allowedIsolation=["mps", "limiter"], defaultIsolation="limiter", in_claim=True)
    assert gpu_config(isolation="mps", in_claim=True) == GpuConfig(isolation="mps")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"allowedIsolation": []}, "no list of words"),
        ({"allowedIsolation": "limiter"}, "no list of words"),
        ({"allowedIsolation": ["limitr"]}, "p.allowedIsolation[0]: 'limitr' is not allowed"),
        ({"allowedIsolation": ["mps"], "defaultIsolation": "limiter"}, "limiter is not among mps"),
        ({"allowedIsolation": ["mps"], "isolation": "none"}, "none is not among mps"),
        ({"isolation": "fairy-dust"}, "'fairy-dust' is not allowed"),
    ],
)
def test_fields_that_cannot_be_meant(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameters) as caught:
        gpu_config(**fields)
    assert told in str(caught.value)


def test_every_word_is_an_attribute_of_its_own() -> None:
    assert len({attribute(word) for word in isolations()}) == len(isolations())
