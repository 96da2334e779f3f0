"""HTML in which every text is escaped, and the frame that pages have in common.

Objects are written by tenants: whatever is no `Html` is a text, in which control characters are written out
(koordra.inert) and markup is no markup. Pages need no script and nothing from elsewhere; the policy says so
to the browser, and admits the one style sheet by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Final
from urllib.parse import quote

from koordra.inert import inert, inert_lines

REFRESH: Final = 30
"""Seconds after which a browser asks for a page of the whole cluster again."""


class Html(str):
    """Markup that is written as it is."""

    __slots__ = ()


def text(value: object) -> Html:
    return value if isinstance(value, Html) else Html(escape(inert(str(value))))


def joined(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(map(text, parts)))


def tag(name: str, *inside: object, **attributes: str | None) -> Html:
    """`class_` is written `class`; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{joined(inside)}</{name}>")


def link(root: str, words: object, *place: str, class_: str | None = None) -> Html:
    """To the page at the place, whatever stands in its words. `root`: the way up from this page."""
    return tag("a", words, href=root + "/".join(quote(one, safe="") for one in place), class_=class_)


def table(header: Sequence[object], rows: Iterable[Sequence[object]], *, class_: str | None = None) -> Html:
    head = tag("tr", *(tag("th", one) for one in header))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    inside = tag("table", tag("thead", head), tag("tbody", *body), class_=class_)
    return tag("div", inside, class_="scroll")


def words_of(told: str) -> Html:
    """What commands print, laid out in lines."""
    return tag("pre", Html(escape(inert_lines(told))))


def lines(several: Iterable[object]) -> Html:
    return joined(several, "<br>")


def page(
    title: str,
    *inside: object,
    root: str,
    at: str = "",
    moment: datetime | None = None,
    refresh: bool = False,
    search: str = "",
) -> bytes:
    """`at`: the part of the dashboard that it is in; `moment`: when the cluster was as it is shown, UTC."""
    parts = (("Fleet", ""), ("Waiting", "waiting"), ("Gangs", "gangs"))
    menu = [
        tag("a", word, href=(root or "./") + place, class_="here" if word == at else None)
        for word, place in parts
    ]
    find = tag(
        "form",
        Html(f'<input name="q" aria-label="Find" placeholder="a part of a name" value="{text(search)}">'),
        action=(root or "./") + "find",
        method="get",
    )
    again = Html(f'<meta http-equiv="refresh" content="{REFRESH}">') if refresh else Html("")
    head = (
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
        again,
        tag("title", f"{title} - koordra"),
        Html(f"<style>{STYLE}</style>"),
    )
    header = tag("header", tag("b", "koordra"), tag("nav", *menu), find)
    since = f"as of {moment:%Y-%m-%d %H:%M:%S} UTC; " if moment else ""
    footer = tag("footer", f"{since}read-only")
    body = (header, tag("main", tag("h1", title), *inside), footer)
    return f'<!doctype html><html lang="en"><head>{joined(head)}</head><body>{joined(body)}</body></html>'.encode()


STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b2733;--faint:#5b6b7c;--paper:#fff;--panel:#f4f6f9;--line:#d3dbe4;
--free:#7fb23a;--shared:#e39a2d;--taken:#2c6da4;--tainted:#b3261e;--off:#9aa5b1;--link:#1d5c94}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf0;--faint:#9aa8b6;--paper:#14191f;--panel:#1d242c;--line:#364350;
--free:#8cc63f;--shared:#f0ad4e;--taken:#5aa2e0;--tainted:#f0625a;--off:#6b7885;--link:#8cc2f2}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.45 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper)}
header{display:flex;flex-wrap:wrap;gap:6px 22px;align-items:center;padding:9px 20px;background:var(--panel);border-bottom:1px solid var(--line)}
nav{display:flex;gap:16px}nav a{text-decoration:none;padding:2px 0}nav a.here{border-bottom:2px solid var(--link);font-weight:600}
form{margin-left:auto;flex:0 1 320px}
input{width:100%;font:inherit;padding:3px 9px;color:inherit;background:var(--paper);border:1px solid var(--line);border-radius:5px}
main{padding:6px 20px 24px;max-width:1500px;margin:auto}footer{padding:10px 20px;color:var(--faint);font-size:13px;border-top:1px solid var(--line)}
a{color:var(--link)}h1{font-size:22px;margin:14px 0 10px;overflow-wrap:anywhere}h2{font-size:17px;margin:24px 0 8px;overflow-wrap:anywhere}
h2 small,h1 small,.faint{color:var(--faint);font-weight:400;font-size:14px}
.scroll{overflow-x:auto}table{border-collapse:collapse;min-width:min(100%,520px)}th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--faint);font-size:13px}td{overflow-wrap:anywhere}table.figures td:not(:first-child),table.figures th:not(:first-child){text-align:right;font-variant-numeric:tabular-nums}
pre{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:12px;overflow-x:auto;font:13px/1.45 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(158px,1fr));gap:6px}
.node{display:block;border:1px solid var(--line);border-radius:6px;padding:4px 7px 6px;text-decoration:none;color:inherit;background:var(--panel);min-width:0}
.node:hover{border-color:var(--link)}.node b{display:block;font-weight:500;font-size:12.5px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.node.bad{border-style:dashed;border-color:var(--tainted)}
i{display:inline-block;width:14px;height:14px;margin:2px 3px 0 0;border-radius:3px;border:1.5px solid var(--off)}
i.f{border-color:var(--free)}i.t{background:var(--taken);border-color:var(--taken)}
i.s{border-color:var(--shared);background:linear-gradient(to top,var(--shared) 55%,transparent 55%)}
i.x{border-color:var(--tainted);background:repeating-linear-gradient(45deg,var(--tainted) 0 2px,transparent 2px 5px)}
i.o{background:var(--off);opacity:.55}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0;color:var(--faint);font-size:14px}.key i{vertical-align:-2px}
.card{border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:10px 0;background:var(--panel)}.card h2{margin:0 0 4px}
.card ul{margin:6px 0 0;padding-left:20px}.card li{overflow-wrap:anywhere}.why{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0;font-size:14px}
.picture{background:#fff;border:1px solid var(--line);border-radius:8px;overflow:auto;max-height:80vh}.picture svg{display:block;width:100%;height:auto;min-width:820px}.picture svg.narrow{width:auto}
.when{color:var(--faint);font-size:14px}.empty{color:var(--faint);padding:24px 0}
"""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The Content-Security-Policy of every page."""
