"""The direction of imports, read from the source: upper layers import lower ones, never the other way, never
sideways."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "koordra"
DEVCLUSTER = ROOT / "devcluster" / "koordra_devcluster"
"""A distribution of its own, above koordra: koordra imports nothing of it."""

EDGES = {"kube", "metrics", "logs", "process", "evictions"}
SECOND_TIER = {"controller", "kubelet_plugin", "nri", "koordra_devcluster"}
BASE = {"quantity", "errors", "inert", "nesting", "yaml_text", "spelling", "effort"}
ALLOWED: dict[str, set[str]] = {
    "inert": set(),
    "nesting": set(),
    "errors": {"inert"},
    "quantity": {"errors"},
    "yaml_text": {"errors", "nesting"},
    "spelling": set(),
    "api": BASE,
    "topology": {"api", *BASE},
    "cel": {"api", *BASE},
    "allocator": {"topology", "cel", "api", *BASE},
    "placement": {"allocator", "topology", "cel", "api", *BASE},
    "simulation": {"placement", "allocator", "topology", "cel", "api", *BASE},
    "compat": {"topology", "api", *BASE},
    "profiles": {"compat", "topology", "api", *BASE},
    "node_state": {"topology", "api", *BASE},
    "effort": {"errors"},
    "logs": BASE,
    "process": {"logs", "metrics", *BASE},
    "metrics": BASE,
    "imex": {"node_state", "process", "logs", "api", *BASE},
    "kube": {"process", "logs", "api", *BASE},
    "evictions": {"kube", "logs", "api", *BASE},
    "_proto": set(),
    **{
        tier: {
            "placement",
            "allocator",
            "compat",
            "profiles",
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
"""Package or module under koordra/ -> what it may import from koordra besides itself; commands may import
everything."""
COMMANDS = ("cli/", "__init__.py", "__main__.py", "koordra_devcluster/cli.py", "koordra_devcluster/demo/")

THIRD_PARTY: dict[str, set[str]] = {
    "kubernetes": {"kube/kubeconfig.py"},
    "prometheus_client": {"metrics/registry.py"},
    "structlog": {"logs.py"},
    "pynvml": {"kubelet_plugin/nvidia_driver/nvml_session.py"},
    "pyroute2": {"kubelet_plugin/network/netlink_links.py"},
    "cel_expr_python": {"cel/environment.py", "koordra_devcluster/apiserver/access/cel_policies.py"},
    "re2": {"cel/functions/values.py"},
    "cryptography": {"controller/webhook/keys.py"},
    "networkx": {"topology/"},
    "sqlalchemy": {"profiles/sql_store.py"},
    "grpc": {"kubelet_plugin/", "koordra_devcluster/", "_proto/"},
    "click": {"cli/", "koordra_devcluster/cli.py", "koordra_devcluster/demo/"},
}
"""Third-party package -> the modules (or folders) that alone may import it."""


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *DEVCLUSTER.rglob("*.py")])


def relative(path: Path) -> str:
    """`allocator/score.py`, `koordra_devcluster/cli.py`."""
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else DEVCLUSTER.parent))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Absolute names of everything a module imports, also inside functions."""
    names: list[str] = []
    for node in ast.walk(tree(path)):
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


def test_nothing_depends_on_training_jobs() -> None:
    """They are a user of gangs, which whoever has another one does without; the process starts them."""
    users = {
        relative(path)
        for path in sources()
        if any(name.startswith("koordra.controller.training.") for name in imports(path))
    }
    assert {user for user in users if not user.startswith("controller/training/")} == {"controller/run.py"}


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
    """No clock, no randomness, no files, no logger in selectors, the search for a placement and in its
    replay."""
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


def test_threads_are_started_by_spawn() -> None:
    """Nobody would notice the end of another (koordra/process/lifecycle.py). Pools carry errors to whoever
    waits."""
    found = {
        relative(path)
        for path in sources()
        if path.is_relative_to(PACKAGE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"Thread", "Timer"}
    }
    assert found == {"process/lifecycle.py"}


def test_files_are_named_after_the_domain() -> None:
    vague = {"utils", "util", "common", "manager", "helper", "helpers", "misc"}
    named = [path for path in sources() if vague & {part.removesuffix(".py") for part in path.parts}]
    assert not named


MOST_ENTRIES = 15


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """Module -> the modules of koordra that it names in imports, a package standing for its `__init__`."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py") if "_proto" not in path.parts}
    return {
        name: frozenset(
            found
            for imported in imports(path)
            for found in (imported if imported in modules else imported.rpartition(".")[0],)
            if found in modules and found != name
        )
        for name, path in modules.items()
    }


def cyclic(graph: dict[str, set[str]]) -> set[str]:
    """The nodes that reach themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph.get(node, ())
        return seen

    return {node for node in graph if node in reached(node)}


def test_modules_do_not_import_each_other_in_circles() -> None:
    assert not cyclic({name: set(found) for name, found in import_graph().items()})


def test_sibling_packages_do_not_import_each_other_in_circles() -> None:
    """A package and what is in it are one; of two packages in the same folder at most one imports the
    other."""
    packages = {module_name(path) for path in PACKAGE.rglob("__init__.py") if "_proto" not in path.parts}
    graph: dict[str, set[str]] = {package: set() for package in packages}
    for module, found in import_graph().items():
        for imported in found:
            ours, theirs = _siblings(module, imported)
            if ours in packages and theirs in packages:
                graph[ours].add(theirs)
    assert not cyclic(graph)


def _siblings(one: str, other: str) -> tuple[str, str]:
    """The two ancestors, or the modules themselves, that lie in the same folder; of a module and its own
    package, the same."""
    for n, (left, right) in enumerate(zip(one.split("."), other.split("."), strict=False)):
        if left != right:
            return ".".join(one.split(".")[: n + 1]), ".".join(other.split(".")[: n + 1])
    return "", ""


def test_imports_stand_at_the_top() -> None:
    """Only commands import inside functions, so that `--help` stays fast; elsewhere that hides a cycle or a
    cost."""
    found = {
        relative(path)
        for path in PACKAGE.rglob("*.py")
        if "_proto" not in path.parts and not relative(path).startswith(COMMANDS)
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not found


def test_packages_are_small() -> None:
    found = {
        module_name(init)
        for init in PACKAGE.rglob("__init__.py")
        if init.parent != PACKAGE
        and "_proto" not in init.parts
        and sum(each.suffix == ".py" or (each / "__init__.py").exists() for each in init.parent.iterdir()) - 1
        > MOST_ENTRIES
    }
    assert not found
