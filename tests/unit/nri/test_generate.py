"""proto/generate.py tells stale files, and only those, whatever version of the compiler wrote them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "koordra" / "_proto"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools compiles proto/; make setup installs it")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fresh(generate: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fresh")
    (out / "koordra").mkdir()
    generate.compile_into(out)
    return out / "koordra" / "_proto"


@pytest.fixture
def kept(fresh: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fresh, tmp_path / "_proto"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_generated_code_is_what_proto_says(generate: ModuleType, fresh: Path) -> None:
    assert generate.stale(fresh, GENERATED) == []


def test_no_generated_module_demands_a_version(fresh: Path) -> None:
    for path in fresh.rglob("*.py"):
        text = path.read_text()
        assert "ValidateProtobufRuntimeVersion" not in text, path
        assert "GRPC_GENERATED_VERSION" not in text, path


def test_missing_extra_and_changed_files_are_named(generate: ModuleType, fresh: Path, kept: Path) -> None:
    (kept / "dra" / "dra_v1_pb2.py").unlink()
    (kept / "dra" / "old_pb2.py").write_text("")
    edit(kept / "nri" / "ttrpc_pb2.pyi", "timeout_nano", "timeout_nanos")
    assert generate.stale(fresh, kept) == ["dra/dra_v1_pb2.py", "dra/old_pb2.py", "nri/ttrpc_pb2.pyi"]


def test_another_compilers_wording_is_not_stale_but_another_meaning_is(
    generate: ModuleType, fresh: Path, kept: Path
) -> None:
    edit(kept / "__init__.py", "grpcio-tools ", "grpcio-tools 0.")
    edit(kept / "dra" / "dra_v1_pb2_grpc.py", "EXPERIMENTAL API", "experimental API")
    edit(kept / "dra" / "dra_v1_pb2.py", "_descriptor._USE_C_DESCRIPTORS", "_descriptor._USE_C_DESCRIPTORS ")
    edit(kept / "dra" / "dra_v1_pb2.pyi", "share_id", "share_ids")  # follows from the .py, which is compared
    assert generate.stale(fresh, kept) == []
    edit(kept / "dra" / "dra_v1beta1_pb2.py", "NodePrepareResourceResponse", "NodePrepareResourceResponsf")
    edit(kept / "dra" / "drahealth_v1_pb2_grpc.py", "/v1.DRA", "/v2.DRA")
    assert generate.stale(fresh, kept) == ["dra/dra_v1beta1_pb2.py", "dra/drahealth_v1_pb2_grpc.py"]
