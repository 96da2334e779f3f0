"""deploy/examples/README.md: what each folder shows, by the title of its own README."""

from __future__ import annotations

from pathlib import Path

from tests.reference.docstrings import table

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "examples"
ABOVE = """\
# Examples

`koordra demo --example NAME` runs one of them on made-up nodes and compares the outcome with the expected result in its README; a test does this for all. On a real cluster use
`kubectl apply -f`.

"""


def page() -> str:
    rows = []
    for readme in sorted(FOLDER.glob("*/README.md")):
        name, title = readme.parent.name, readme.read_text().partition("\n")[0].removeprefix("# ")
        rows.append((f"[{name}]({name}/README.md)", title))
    return ABOVE + table(("example", "what it shows"), rows)
