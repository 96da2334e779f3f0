"""The pages of `koordra dashboard`: what stands in them, and that nothing of a tenant's becomes markup."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from koordra.api import names
from koordra.cli.cluster.dashboard import cells as module
from koordra.cli.cluster.dashboard.cells import Cells
from koordra.cli.cluster.dashboard.fleet import CardState, Filter
from koordra.cli.cluster.dashboard.markup import POLICY, STYLE, page, tag
from koordra.cli.cluster.dashboard.pages.address import OfFleet, OfSnapshot, address_of
from koordra.errors import NotFound
from tests.unit.allocator.machines import request
from tests.unit.dashboard.scene import Site, busy, fleet, listed, running, waiting

VOID = {"meta", "link", "input", "br"}
TARGETS = (
    "/",
    "/waiting",
    "/gangs",
    "/find?q=train",
    "/node/hgx-h100-0000",
    "/node/gb200-nvl72-0000",
    "/claim/default/infer-0",
    "/claim/default/sweep-3",
    "/pod/default/train-0",
    "/gang/default/train",
    "/gang/default/big",
)


class WellFormed(HTMLParser):
    """Every tag is closed, in order, and there is nothing that could act."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "iframe", "object", "embed", "base"}
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name in ("href", "src", "action"):
                assert not re.match(r"\s*(javascript|https?|//)", value or "")
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()


def read(text: str) -> WellFormed:
    found = WellFormed()
    found.feed(text)
    assert not found.open
    return found


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(busy())


@pytest.mark.parametrize("target", TARGETS)
def test_every_page_is_well_formed_and_leads_to_pages_only(site: Site, target: str) -> None:
    found = read(site.page(target))
    here = target.partition("?")[0].split("/")[1:-1]
    for link in found.links:
        if link.startswith("data:"):
            continue
        up = link.count("../")
        assert up in (0, len(here)), link
        address_of("/" + link.replace("../", "").removeprefix("./"))


def test_the_fleet_has_a_cell_for_every_card_in_its_state(site: Site) -> None:
    text = site.page("/")
    cells = [len(re.findall(rf"<i class={letter}></i>", text)) - 1 for letter in "fstxo"]
    assert cells == [86, 2, 48, 0, 0]
    assert "<td>136</td><td>86</td><td>2</td><td>48</td><td>0</td><td>0</td>" in text
    assert "18 nodes, 72 GPUs, 70 free" in text


def test_the_fleet_is_narrowed_by_model_block_and_state(site: Site) -> None:
    assert site.page("/?model=H100").count('class="node"') == 8
    assert site.page("/?block=block-001").count('class="node"') == 4
    assert site.page("/?state=shared").count('class="node"') == 1
    assert "0 of 26 nodes" in site.page("/?model=nobody")
    assert address_of("/?state=strange") == OfFleet(Filter())


def test_a_card_that_is_cut_is_one_cell_and_one_with_a_taint_or_a_broken_pool_is_told() -> None:
    made = fleet("hgx-h100:3")
    slices = [one for one in made if one["kind"] == "ResourceSlice"]
    cards = [
        device
        for device in slices[0]["spec"]["devices"]
        if device["attributes"][names.ATTR_TYPE] == {"string": names.TYPE_GPU}
    ]
    for number, card in enumerate(cards[:2]):
        sick = {"key": names.UNHEALTHY_TAINT, "value": f"Xid{number}", "effect": "NoSchedule"}
        card["taints"] = [*card.get("taints", ()), sick]
    other = next(one for one in slices if one["spec"]["nodeName"] == "hgx-h100-0001")
    other["spec"]["pool"]["resourceSliceCount"] += 1
    next(one for one in made if one["metadata"]["name"] == "hgx-h100-0002" and one["kind"] == "Node")[
        "spec"
    ] = {"unschedulable": True}
    first, second, third = Cells().nodes(listed(made))
    assert first.states == {CardState.TAINTED: 2, CardState.FREE: 6}
    assert (second.cards, "pool hgx-h100-0001" in second.trouble) == ((), True)
    assert third.trouble == "cordoned"
    assert Site(made).page("/").count('class="node bad"') == 2


def test_what_of_one_node_cannot_be_read_is_told_of_that_node_alone() -> None:
    made = running([*fleet("hgx-h100:2"), *waiting("a", request("gpus", count=8))])
    (held,) = (one for one in made if one["kind"] == "ResourceClaim")
    held["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"memory": "80 GB"}
    hold = {"kind": "DeviceHold", "metadata": {"name": "h"}, "spec": {"seats": [{"node": "x"}, 3]}}
    first, second = Cells().nodes(listed([*made, hold]))
    assert (len(first.cards), bool(first.trouble)) == (0, True)
    assert (len(second.cards), second.trouble) == (8, "")


def test_only_nodes_of_which_something_changed_are_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    rows_of = module.device_rows

    def counted(of: Any) -> Any:
        found = list(of)
        asked.append(found[0]["metadata"]["name"])
        return rows_of(found)

    monkeypatch.setattr(module, "device_rows", counted)
    made, cells = fleet("hgx-h100:3"), Cells()
    cells.nodes(listed(made))
    assert len(asked) == 3
    before = cells.nodes(listed(made))
    assert len(asked) == 3
    changed = [copy.deepcopy(one) if one["metadata"]["name"] == "hgx-h100-0001" else one for one in made]
    assert cells.nodes(listed(changed)) == before
    assert asked[3:] == ["hgx-h100-0001"]
    taken = running([*made, *waiting("a", request("gpus", count=8))])
    assert [node.states[CardState.TAKEN] for node in cells.nodes(listed(taken))].count(8) == 1


def test_who_waits_is_told_once_for_all_that_wait_alike(site: Site) -> None:
    text = site.page("/waiting")
    assert "71 claims wait for devices" in text
    assert [re.sub("<.*?>", "", one) for one in re.findall("<h2>(.*?)</h2>", text)] == [
        "InsufficientCapacity 38 claims",
        "gangs, which are placed as a whole 30 claims",
        "would fit now 2 claims",
        "ExceedsDevice 1 claim",
    ]
    assert text.count("requested 900Gi, no device has more than 185.0Gi") == 1
    assert "0 of 30 members fit" in text
    assert "and 37 more (pod " in text


def test_nobody_waits_and_nothing_is_there() -> None:
    assert "No claim waits for devices." in Site(fleet("hgx-h100")).page("/waiting")
    assert "no node publishes a device" in Site([]).page("/")
    assert "There is no gang." in Site([]).page("/gangs")
    assert "has &#x27;x&#x27; in its name" in Site([]).page("/find?q=x")


def test_a_node_leads_from_its_picture_to_claims_pods_and_what_keeps_them_apart(
    site: Site,
) -> None:
    text = site.page("/node/gb200-nvl72-0000")
    assert "<svg" in text
    assert 'href="../claim/default/infer-0"' in text
    assert 'href="../pod/default/infer-0"' in text
    assert "memory 20Gi, by the limiter inside the container<br>only accounted for: cores 30" in text


def test_what_is_not_there_is_not_found(site: Site) -> None:
    for target in ("/node/none", "/claim/default/none", "/pod/default/none", "/gang/default/none"):
        with pytest.raises(NotFound):
            site.page(target)
    assert address_of(f"/?block={'b' * 900}") == OfFleet(Filter(block="b" * 900))
    for target in (
        "/nothing",
        "/?" + "&".join(f"a{number}=1" for number in range(40)),
        "/claim/x",
        "/node/",
        "/claim//x",
        "/" + "x" * 3000,
        "//",
        "",
    ):
        with pytest.raises(NotFound):
            address_of(target)
    assert address_of("/claim/a%2Fb/c") == OfSnapshot("claim", ("a/b", "c"))


EVIL = "\"'><script>alert(1)</script>\x1b[2J\u202e&amp;"


def test_what_tenants_write_is_text(site: Site) -> None:
    """In every field of an object that is not checked by the API server, and some that are."""
    made = copy.deepcopy(site.manifests)
    for one in made:
        if one["kind"] == "Pod":
            one["metadata"]["ownerReferences"] = [{"kind": EVIL, "name": EVIL, "controller": True}]
            one["spec"]["nodeSelector"] = {EVIL: EVIL} if "sweep" in one["metadata"]["name"] else None
        if one["kind"] == "Pod" and "big" in one["metadata"]["name"]:
            one["metadata"]["ownerReferences"][0]["name"] = EVIL * 1_000
        if one["kind"] == "Node":
            one["metadata"]["labels"]["fabric.koordra.io/block"] = EVIL
            one["spec"] = {"taints": [{"key": EVIL, "value": EVIL, "effect": "NoSchedule"}]}
        if one["kind"] == "ResourceClaim" and one.get("status"):
            result = one["status"]["allocation"]["devices"]["results"][0]
            entry = {field: result[field] for field in ("driver", "pool", "device")}
            condition = {"type": EVIL, "status": "True", "reason": EVIL, "message": EVIL}
            one["status"]["devices"] = [
                {**entry, "shareID": result.get("shareID"), "conditions": [condition]}
            ]
        for device in one["spec"].get("devices") or () if one["kind"] == "ResourceSlice" else ():
            device["attributes"][names.ATTR_PRODUCT_NAME] = {"string": EVIL}
            device["attributes"][names.ATTR_MODEL] = {"string": EVIL}
    evil = Site(made)
    for target in TARGETS:
        text = evil.page(target)
        read(text)
        assert "<script" not in text
        assert len(text) < 120_000
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_name_that_is_markup_stays_a_text() -> None:
    text = page(EVIL, tag("p", EVIL, title=EVIL), root="", search=EVIL).decode()
    read(text)
    assert text.count("&lt;script&gt;") == 5


def test_the_policy_admits_the_style_and_nothing_else() -> None:
    assert POLICY.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in POLICY
    assert f"<style>{STYLE}</style>" in page("x", root="").decode()
