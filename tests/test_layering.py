"""The direction of imports, read from the source: upper layers import lower ones, never the other way, never sideways."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "koordra"
DEVCLUSTER = ROOT / "devcluster" / "koordra_devcluster"
"""A distribution of its own, above koordra: koordra imports nothing of it."""

EDGES = {"kube", "watch", "metrics", "logs", "process"}
SECOND_TIER = {"controller", "kubelet_plugin", "nri", "koordra_devcluster"}
BASE = {"quantity", "errors"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "quantity": {"errors"},
    "api": BASE,
    "topology": {"api", *BASE},
    "cel": {"api", *BASE},
    "allocator": {"topology", "cel", "api", *BASE},
    "placement": {"allocator", "topology", "cel", "api", *BASE},
    "simulation": {"placement", "allocator", "topology", "cel", "api", *BASE},
    "compat": {"topology", "api", *BASE},
    "node_state": {"topology", "api", *BASE},
    "process": BASE,
    "logs": BASE,
    "metrics": BASE,
    "kube": {"api", *BASE},
    "watch": {"kube", "logs", "api", *BASE},
    "_proto": set(),
    **{
        tier: {
            "placement",
            "allocator",
            "compat",
            "node_state",
            "topology",
            "cel",
            "api",
            "_proto",
            *EDGES,
            *BASE,
        }
        for tier in SECOND_TIER
    },
}
"""Package or module under koordra/ -> what it may import from koordra besides itself; commands may import everything."""

COMMANDS = ("cli/", "__init__.py", "__main__.py", "koordra_devcluster/cli.py", "koordra_devcluster/demo/")

THIRD_PARTY: dict[str, set[str]] = {
    "kubernetes": {"kube.py"},
    "prometheus_client": {"metrics.py"},
    "structlog": {"logs.py"},
    "pynvml": {"kubelet_plugin/discovery/nvml/library.py"},
    "pyroute2": {"kubelet_plugin/network/netlink_links.py"},
    "cel_expr_python": {"cel/selectors.py", "koordra_devcluster/apiserver/cel_policies.py"},
    "cryptography": {"controller/webhook/certificates.py"},
    "networkx": {"topology/"},
    "grpc": {"kubelet_plugin/", "koordra_devcluster/", "_proto/"},
    "click": {"cli/", "koordra_devcluster/cli.py", "koordra_devcluster/demo/"},
    "rich": {"cli/"},
}
"""Third-party package -> the modules (or folders) that alone may import it."""


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *DEVCLUSTER.rglob("*.py")])


def relative(path: Path) -> str:
    """`allocator/score.py`, `koordra_devcluster/cli.py`."""
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else DEVCLUSTER.parent))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Absolute names of everything a module imports, also inside functions."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def layer(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


def test_imports_point_down() -> None:
    wrong = []
    for path in sources():
        here = layer(path)
        if relative(path).startswith(COMMANDS):
            continue
        assert here in ALLOWED, f"koordra/{here} has no place in ALLOWED"
        for name in imports(path):
            parts = name.split(".")
            if (
                parts[0] == "koordra"
                and len(parts) > 1
                and parts[1] not in {here, "__version__"} | ALLOWED[here]
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_koordra_works_without_its_development_cluster() -> None:
    above = {path for path in sources() for name in imports(path) if name.startswith(DEVCLUSTER.name)}
    assert not [path for path in above if path.is_relative_to(PACKAGE)]


def test_third_party_packages_have_one_door() -> None:
    wrong = []
    for path in sources():
        for name in imports(path):
            doors = THIRD_PARTY.get(name.split(".")[0])
            if doors is not None and not any(
                relative(path) == door or (door.endswith("/") and relative(path).startswith(door))
                for door in doors
            ):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}; only {', '.join(sorted(doors))} may")
    assert not wrong, "\n".join(wrong)


def test_allocator_cel_placement_and_simulation_are_pure() -> None:
    """No clock, no randomness, no files, no logger in selectors, the search for a placement and in its replay."""
    forbidden = {
        "time",
        "random",
        "os",
        "socket",
        "subprocess",
        "threading",
        "logging",
        "secrets",
        "pathlib",
        "datetime",
    }
    for path in (
        path for path in sources() if layer(path) in {"allocator", "cel", "placement", "simulation"}
    ):
        found = {name.split(".")[0] for name in imports(path)} & forbidden
        assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def test_files_are_named_after_the_domain() -> None:
    vague = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
    named = [path for path in sources() if vague & {part.removesuffix(".py") for part in path.parts}]
    assert not named
