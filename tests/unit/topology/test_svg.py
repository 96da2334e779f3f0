"""The picture: well-formed, self-contained, complete, and nothing lies on anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from koordra.topology.machine import Machine
from koordra.topology.pictures.dot import dot
from koordra.topology.pictures.drawing.nvlinks import nvlink_height
from koordra.topology.pictures.drawing.pen import Pen, fitting, number, text_width
from koordra.topology.pictures.drawing.plan import GPU_SIZE, NIC_SIZE, plan
from koordra.topology.pictures.svg import svg
from koordra.topology.pictures.usage import MachineUsage, Part
from tests.machines import catalogue

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "rect", "line", "path", "circle", "text"}
Box = tuple[float, float, float, float]


def picture(name: str) -> ET.Element:
    return ET.fromstring(svg(catalogue.machine(name), title=name))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_self_contained_and_complete(name: str) -> None:
    root = picture(name)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= DRAWN
    text = svg(catalogue.machine(name), title=name)
    assert not re.search(r"href|url\(|<style|<script|@import", text)
    notes = [element.text for element in root.iter(f"{SVG}title")]
    machine = catalogue.machine(name)
    for device in (*machine.gpus, *machine.nics):
        assert notes.count(device.name) == 1


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_everything_lies_on_the_page_and_no_text_leaves_it(name: str) -> None:
    root = picture(name)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for element in root.iter(f"{SVG}rect"):
        x, y, right, bottom = box(element)
        assert x >= 0
        assert y >= 0
        assert right <= width
        assert bottom <= height
    for element in root.iter(f"{SVG}text"):
        left, _, right, bottom = text_box(element)
        assert left >= 0
        assert right <= width + 1
        assert bottom <= height


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_no_text_lies_on_another(name: str) -> None:
    texts = [(element.text, text_box(element)) for element in picture(name).iter(f"{SVG}text")]
    for (one, a), (other, b) in combinations(texts, 2):
        assert not overlap(a, b), f"{one!r} and {other!r}"


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_tiles_lie_side_by_side(name: str) -> None:
    placed = plan(catalogue.machine(name), least_width=0)
    for size, tiles in (
        (GPU_SIZE, [tile for bar in placed.bars() for tile in bar.gpus]),
        (NIC_SIZE, [tile for bar in placed.bars() for tile in bar.nics]),
    ):
        for a, b in combinations(tiles, 2):
            assert a.x + a.width <= b.x or b.x + b.width <= a.x
        assert all(tile.width <= size[0] for tile in tiles)


def test_holders_and_states_fit_into_their_ribbons() -> None:
    machine = catalogue.machine("hgx-h100")
    holders = {device.name: (f"a-very-long-namespace-name/claim-{'x' * 60}",) for device in machine.devices()}
    root = ET.fromstring(svg(machine, MachineUsage(holders=holders), title="held"))
    ribbons = [box(element) for element in root.iter(f"{SVG}rect") if element.get("fill") == "#e39a2d"]
    assert len(ribbons) == 24 + 1
    cut = [element for element in root.iter(f"{SVG}text") if (element.text or "").endswith("…")]
    assert len(cut) == 24
    for element in cut:
        left, top, right, bottom = text_box(element)
        assert any(
            x <= left and right <= end and y <= top + 3 and bottom <= low for x, y, end, low in ribbons
        )


def test_parts_of_a_card_are_bars_and_names_stand_below_in_full() -> None:
    machine = catalogue.machine("hgx-h100")
    gpu, nic = machine.gpus[0].name, machine.nics[0].name
    names = [f"team/{letter * 60}" for letter in "ab"]
    usage = MachineUsage(
        holders={gpu: tuple(names), nic: (names[0],)},
        parts={
            gpu: (
                Part(names[0], {"memory": "20Gi", "cores": "30"}, {"memory": 0.25, "cores": 0.3}),
                Part(names[1], {"memory": "40Gi"}, {"memory": 0.5}),
            ),
            nic: (Part(names[0], {"share": "25"}, {"share": 0.25}),),
        },
    )
    root = ET.fromstring(svg(machine, usage, title="shared"))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"memory 75%", "cores 30%", "25%"} <= set(texts)
    assert f"GPU0 {gpu}: {names[0]} (memory 20Gi, cores 30)" in texts
    assert f"GPU0 {gpu}: {names[1]} (memory 40Gi)" in texts
    pieces = [box(one) for one in root.iter(f"{SVG}rect") if one.get("fill") == "#e39a2d"][:4]
    widths = [round(right - left, 1) for left, _, right, _ in pieces]
    assert widths == [12.5, 28.5, 57.0, 34.2], "a quarter of a NIC; a quarter and a half, and 30 %, of a card"


def test_names_that_are_longer_than_the_page_go_on_in_the_next_line() -> None:
    machine = catalogue.machine("t4x4-1nic")
    name = f"{'n' * 63}/{'c' * 250}"
    text = svg(machine, MachineUsage(holders={machine.gpus[0].name: (name,)}))
    shown = [element.text or "" for element in ET.fromstring(text).iter(f"{SVG}text")]
    start = next(place for place, line in enumerate(shown) if line.startswith("GPU0 gpu-"))
    assert "".join(shown[start:]).endswith(name)


def test_text_from_outside_cannot_break_the_document() -> None:
    machine = catalogue.machine("t4x4-1nic")
    root = ET.fromstring(
        svg(machine, MachineUsage(holders={machine.gpus[0].name: ('a/<b>&"c',)}), title="<&>")
    )
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "<&>" in texts


def test_an_empty_machine_is_a_picture_too() -> None:
    assert "no GPU and no RDMA NIC" in svg(Machine())
    assert dot(Machine()).startswith("graph machine {")


def test_a_mesh_has_an_arc_for_each_pair_and_a_fabric_has_none() -> None:
    assert len(list(picture("v100x8-sxm2").iter(f"{SVG}path"))) == 16
    assert not list(picture("hgx-h100").iter(f"{SVG}path"))
    assert nvlink_height(plan(catalogue.machine("t4x4-1nic"), least_width=0)) == 0


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_dot_names_every_device_and_every_link(name: str) -> None:
    machine = catalogue.machine(name)
    text = dot(machine)
    for device in machine.devices():
        assert text.count(f"\\n{device.name}\\n") == 1
        assert f'-- "{device.location.bus_id}"' in text
    assert text.count("{") == text.count("}")


def test_fitting() -> None:
    assert fitting(("PCIe switch", "switch"), 1000, 10) == "PCIe switch"
    assert fitting(("PCIe switch", "switch"), 40, 10) == "switch"
    assert fitting(("switch",), 20, 10) == "s…"
    assert fitting(("switch",), 1, 10) == ""
    assert text_width("mm", 10, mono=True) == pytest.approx(12.04)
    assert [number(value) for value in (1.0, 1.25, 10, 0.04)] == ["1", "1.2", "10", "0"]
    pen = Pen()
    pen.text(0, 0, "", size=10)
    assert not pen.elements


def box(element: ET.Element) -> Box:
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    return x, y, x + float(element.attrib["width"]), y + float(element.attrib["height"])


def text_box(element: ET.Element) -> Box:
    """The area of the letters themselves, a little tight, since fonts differ."""
    text, size = element.text or "", float(element.attrib["font-size"])
    bold, mono = "font-weight" in element.attrib, "font-family" in element.attrib
    width = text_width(text, size, bold=bold, mono=mono)
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
    return left, y - 0.7 * size, left + width, y + 0.15 * size


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
