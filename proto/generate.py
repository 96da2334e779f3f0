"""Compile proto/ into koordra/_proto/, or check that what lies there is what would be compiled.

    python proto/generate.py           writes koordra/_proto/
    python proto/generate.py --check   writes nothing; exit code 1, naming the stale files, when they differ

Works offline: grpcio-tools carries the compiler. The folder proto/ is mapped to the virtual path
koordra/_proto, so that the generated modules import each other, and register themselves with protobuf, under
the name by which they are used.

What grpcio-tools writes depends a little on its version. Two things are done about it. The lines that demand
a runtime at least as new as the compiler are taken out (what these plain messages use has been in the
runtimes since those that pyproject.toml asks for). And --check compares every byte only when the compiler is
of the version recorded in koordra/_proto/__init__.py; with any other it compares what the files mean: the
embedded descriptors, and the methods of the gRPC stubs.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GENERATED = ROOT / "koordra" / "_proto"
PACKAGES = ("dra", "nri")
GRPC_PACKAGES = (
    "dra",
)  # NRI is spoken over ttrpc by koordra/nri/transport/ttrpc.py, and needs messages only

_INIT = '''"""Generated from proto/ by `make generate`; never edited. Messages, and stubs of gRPC services."""

GENERATED_WITH = "grpcio-tools {version}"
'''
_VERSION_LINES = (
    re.compile(r"^# Protobuf Python Version: .*\n", re.M),
    re.compile(r"^from google\.protobuf import runtime_version as _runtime_version\n", re.M),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)*\)\n", re.M),
)
_GRPC_VERSION_BLOCK = re.compile(
    r"^GRPC_GENERATED_VERSION = .*?^    \)\n", re.M | re.S
)  # up to the end of its `raise RuntimeError(...)`


_NOT_PYTHON = re.compile(
    r"^ *None: .*\n", re.M
)  # an enum value of NRI; type checkers refuse the name in a .pyi


def compile_into(out: Path) -> None:
    """Write the packages below ``out`` (which stands for the repository's root), normalised."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    for package in PACKAGES:
        sources = [
            f"koordra/_proto/{package}/{path.name}" for path in sorted((PROTO / package).glob("*.proto"))
        ]
        arguments = ["protoc", f"-Ikoordra/_proto={PROTO}", f"-I{well_known}"]
        arguments += [f"--python_out={out}", f"--pyi_out={out}"]
        if package in GRPC_PACKAGES:
            arguments.append(f"--grpc_python_out={out}")
        if protoc.main([*arguments, *sources]) != 0:
            sys.exit(f"proto/{package} does not compile")
        (out / "koordra" / "_proto" / package / "__init__.py").write_text("")
    generated = out / "koordra" / "_proto"
    for path in generated.rglob("*_pb2*.py"):
        path.write_text(without_version_checks(path.read_text()))
    for path in generated.rglob("*_pb2.pyi"):
        path.write_text(_NOT_PYTHON.sub("", path.read_text()))
    (generated / "__init__.py").write_text(_INIT.format(version=importlib.metadata.version("grpcio-tools")))


def without_version_checks(text: str) -> str:
    """The generated module without the lines that tie it to a version of the runtime."""
    for pattern in _VERSION_LINES:
        text = pattern.sub("", text)
    text = _GRPC_VERSION_BLOCK.sub("", text)
    return text.replace("import warnings\n", "") if "warnings." not in text else text


def meaning(path: Path) -> object:
    """What a generated file says, whatever compiler wrote it: descriptors of a _pb2.py, method paths of a
    _pb2_grpc.py."""
    if path.suffix == ".pyi" or path.name == "__init__.py":
        return None
    constants = [
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    ]
    if path.name.endswith("_pb2_grpc.py"):
        return sorted({value for value in constants if isinstance(value, str) and value.startswith("/")})
    return max((value for value in constants if isinstance(value, bytes)), key=len, default=b"")


def files(root: Path) -> dict[str, Path]:
    """Generated files below ``root``, by path relative to it."""
    found = (path for path in root.rglob("*") if path.suffix in (".py", ".pyi"))
    return {str(path.relative_to(root)): path for path in sorted(found)}


def stale(fresh: Path, kept: Path) -> list[str]:
    """Names of files that are missing from ``kept``, too many there, or differ from ``fresh``."""
    want, have = files(fresh), files(kept)
    names = sorted(want.keys() ^ have.keys())
    both = want.keys() & have.keys()
    same_compiler = (
        "__init__.py" in both and want["__init__.py"].read_text() == have["__init__.py"].read_text()
    )
    for name in sorted(both):
        differs = (
            want[name].read_text() != have[name].read_text()
            if same_compiler
            else meaning(want[name]) != meaning(have[name])
        )
        if differs:
            names.append(name)
    return sorted(names)


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compile proto/ into koordra/_proto/.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when stale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / "koordra" / "_proto"
        fresh.parent.mkdir()
        compile_into(Path(temporary))
        names = stale(fresh, GENERATED)
        if arguments.check:
            for name in names:
                sys.stderr.write(f"stale: koordra/_proto/{name}; run `make generate`\n")
            return 1 if names else 0
        for name, path in files(GENERATED).items():
            if name not in files(fresh):
                path.unlink()
        for name, path in files(fresh).items():
            target = GENERATED / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
