"""Elements of an SVG document, colours and text that is known to fit.

Numbers are written with at most one decimal, so that a picture is the same bytes everywhere. Text is measured
with the widths of Helvetica (which Arial and Liberation Sans share), because a file cannot ask the viewer's
fonts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from koordra.inert import inert

INK: Final = "#1b2733"
FAINT_INK: Final = "#5b6b7c"
PAPER: Final = "#ffffff"
SOCKET: Final = ("#f2f4f7", "#aab4c0")
NUMA: Final = ("#e6ebf2", "#b9c4d1")
ROOT: Final = ("#ffffff", "#c3ccd6")
SWITCH: Final = "#3b4d63"
HOST_BRIDGE: Final = "#8695a6"
GPU: Final = ("#eaf4dc", "#5f8d1f")
NIC: Final = ("#e0eefa", "#2c6da4")
NVLINK: Final = "#6aa10c"
NVLINK_DARK: Final = "#3f6607"
HELD: Final = "#e39a2d"
FAULT: Final = "#b3261e"
OFF: Final = ("#ececec", "#9a9a9a")

# Dark to light with distance, so that a black-and-white print reads the same.
LEVELS: Final = {
    "PIX": ("#0b5d4e", "#ffffff"),
    "PXB": ("#3c9273", "#ffffff"),
    "PHB": ("#97cdaa", INK),
    "NODE": ("#f0dba6", INK),
    "SYS": ("#f7f3ea", FAINT_INK),
}
RAILS: Final = ("#1f6fb2", "#d1602b", "#2f8f5b", "#8a4fa3", "#b0891b", "#a83250", "#4a7a8c", "#6b5b3e")

SANS: Final = "Helvetica, Arial, 'Liberation Sans', sans-serif"
MONO: Final = "'DejaVu Sans Mono', Menlo, Consolas, monospace"

_MONO_WIDTH: Final = 0.602
_BOLD: Final = 1.07
# Thousandths of the font size (Helvetica, Adobe core metrics), for characters that are far from the usual
# 556.
_WIDTHS: Final = {
    character: width
    for width, characters in {
        278: "iljI.,:;'|!/ ",
        333: "ftr-()[]*",
        500: "ckszvxyJ",
        667: "ABEKPSVXY&",
        722: "CDHNRUw",
        778: "GOQ",
        833: "mM",
        944: "W%",
        1000: "…—",
    }.items()
    for character in characters
}


def text_width(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """How wide a line of text is drawn, in the units of ``size``."""
    if mono:
        return len(text) * size * _MONO_WIDTH
    return sum(_WIDTHS.get(character, 556) for character in text) / 1000 * size * (_BOLD if bold else 1)


def fitting(texts: Iterable[str], width: float, size: float, *, bold: bool = False) -> str:
    """The first of the texts that fits; where none does, as much of the last as does, with an ellipsis."""
    last = ""
    for last in texts:
        if text_width(last, size, bold=bold) <= width:
            return last
    while last and text_width(last + "…", size, bold=bold) > width:
        last = last[:-1].rstrip(" -/")
    return last + "…" if last else ""


@dataclass(slots=True)
class Pen:
    """Collects elements in drawing order."""

    elements: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        radius: float = 0,
        stroke_width: float = 1,
        dashed: bool = False,
    ) -> None:
        self.add(
            "rect",
            x=x,
            y=y,
            width=width,
            height=height,
            rx=radius or None,
            fill=fill,
            stroke=stroke,
            stroke_width=stroke_width if stroke != "none" else None,
            stroke_dasharray="5 3" if dashed else None,
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width)

    def polyline(
        self, points: Iterable[tuple[float, float]], *, stroke: str, width: float, dashed: bool
    ) -> None:
        self.add(
            "polyline",
            points=" ".join(f"{number(x)},{number(y)}" for x, y in points),
            fill="none",
            stroke=stroke,
            stroke_width=width,
            stroke_dasharray="5 3" if dashed else None,
        )

    def text(
        self,
        x: float,
        y: float,
        *texts: str,
        size: float,
        fill: str = INK,
        bold: bool = False,
        mono: bool = False,
        anchor: str = "start",
        room: float | None = None,
    ) -> None:
        """One line with its baseline at ``y``: the first text, or of several the one that fits into ``room``,
        see `fitting`. ``anchor`` is start, middle or end."""
        content = texts[0] if room is None else fitting(texts, room, size, bold=bold)
        if content:
            self.add(
                "text",
                x=x,
                y=y,
                font_size=size,
                fill=fill,
                font_weight="bold" if bold else None,
                font_family=MONO if mono else None,
                text_anchor=anchor if anchor != "start" else None,
                content=content,
            )

    def note(self, text: str) -> None:
        """What a viewer shows when the pointer rests on the element drawn last."""
        opened = self.elements[-1].removesuffix("/>")
        tag = opened[1:].partition(" ")[0]
        self.elements[-1] = f"{opened}><title>{_escaped(text)}</title></{tag}>"

    def document(self, width: float, height: float, *, title: str) -> str:
        """Everything drawn, as a whole SVG document that ends with a newline."""
        across, down = number(width), number(height)
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{down}" '
            f'viewBox="0 0 {across} {down}" font-family={quoteattr(SANS)} role="img">'
        )
        return "\n".join([opening, f"<title>{_escaped(title)}</title>", *self.elements, "</svg>"]) + "\n"

    def add(self, tag: str, content: str | None = None, **attributes: str | float | None) -> None:
        written = " ".join(
            f"{name.replace('_', '-')}={quoteattr(value if isinstance(value, str) else number(value))}"
            for name, value in attributes.items()
            if value is not None
        )
        self.elements.append(
            f"<{tag} {written}/>" if content is None else f"<{tag} {written}>{_escaped(content)}</{tag}>"
        )


def _escaped(text: str) -> str:
    """Control characters are written out: XML has no words for most of them."""
    return escape(inert(text))


def number(value: float) -> str:
    """At most one decimal: ``12``, ``12.5``."""
    return f"{value:.1f}".removesuffix(".0")
