"""The whole self test on a made-up machine: what is well is ok, and what it is there to catch it catches."""

from __future__ import annotations

import json
import platform
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import LIBRARIES, GpuMachine
from tests.fakes.native import BUILT, ROOT
from tests.unit.kubelet_plugin.selftest.conftest import Run, Steps, needs_namespaces

GIB = 1 << 30
PACKAGES = ROOT / "tests" / "fakes" / "cuda_packages"
pytestmark = pytest.mark.long


def problems(steps: Steps) -> dict[str, str]:
    return {name: step["found"] for name, step in steps.items() if step["status"] == "problem"}


@pytest.mark.parametrize("container", ["process", pytest.param("namespace", marks=needs_namespaces)])
def test_a_machine_that_is_well_has_no_problem(selftest: Run, tmp_path: Path, container: str) -> None:
    bundle = tmp_path / "r.tar.gz"
    steps = selftest("--container", container, "--report", str(bundle), "--only", "[ws]h*: *")
    assert problems(steps) == {}
    driver = steps["share: driver-api"]["details"]
    assert driver["total"] == 8 * GIB
    assert driver["limiter"]["processes"] == 1
    assert driver["limiter"]["refused"] >= 2
    assert driver["moreOnCard"] == 0  # the fake NVML knows of no memory in use
    assert steps["share: two-processes"]["details"]["limiter"]["processes"] == 2
    assert steps["share: torch"]["reason"].startswith("torch is not installed")
    assert steps["share: two-processes"]["status"] == "ok"
    assert set(steps["limiter-overhead"]["details"]["ratios"]) == set(steps["whole: costs"]["details"]) - {
        "mapped"
    }
    with tarfile.open(bundle) as tar:
        names = set(tar.getnames())
        specs = tar.extractfile("koordra-selftest/specs/share.json")
        report = tar.extractfile("koordra-selftest/report.json")
        assert specs is not None
        assert report is not None
        assert json.load(specs)["kind"] == "koordra.io/claim"
        assert json.load(report)["finished"] is True
    assert {f"koordra-selftest/programs/{name}.txt" for name in ("whole-driver-api", "share-nvml")} <= names


def test_programs_of_every_library_keep_to_the_share(selftest: Run) -> None:
    """PyTorch with each of its allocators, Triton, CuPy, JAX and NCCL, by stand-ins that take real memory
    of the fake driver: each is refused what is beyond the share, and lives on."""
    steps = selftest(
        "--container", "process", "--only", "*: [tjcn][!o]*", "--only", "*: torch*", PYTHONPATH=str(PACKAGES)
    )
    assert problems(steps) == {}
    for name in ("torch", "torch-expandable-segments", "torch-cudaMallocAsync"):
        said = steps[f"share: {name}"]["details"]
        assert said["limiter"]["processes"] == 1
        assert said["limiter"]["refused"] >= 1
        assert 6 * GIB < said["most"] <= 8 * GIB
    for name in ("share: cupy", "share: jax"):
        assert "emory" in steps[name]["details"]["refused"]
    for name in (
        "whole: torch",
        "whole: torch-compile",
        "whole: cupy",
        "whole: jax",
        "whole: nccl",
        "share: nccl",
    ):
        assert steps[name]["status"] == "ok"


@needs_namespaces
def test_the_loader_s_cache_names_the_driver_once_and_the_limiter_in_its_place(selftest: Run) -> None:
    """What the claim's hook makes: Triton and ctypes find libcuda by the cache."""
    steps = selftest("--container", "namespace", "--only", "*: library-search")
    assert problems(steps) == {}
    for name in ("whole: library-search", "share: library-search"):
        said = steps[name]["details"]
        assert said["cached"] == [f"/{LIBRARIES}/libcuda.so.1"]
        assert said["triton"] == [f"/{LIBRARIES}"]
        assert said["findLibrary"] == "libcuda.so.1"


@needs_namespaces
def test_in_a_namespace_all_that_a_program_has_of_the_driver_comes_by_the_spec(selftest: Run) -> None:
    steps = selftest("--container", "namespace", "--only", "*: driver-api")
    for name, opened in (
        ("whole: driver-api", f"/{LIBRARIES}/libcuda.so.1"),
        ("share: driver-api", f"/usr/lib/koordra/limiter/{platform.machine()}/libcuda.so.1"),
    ):
        mapped = steps[name]["details"]["mapped"]
        assert opened in mapped
        assert not [path for path in mapped if path.startswith(str(Path("/tmp")))]
    assert "/usr/lib/koordra/driver/libcuda.so.1" in steps["share: driver-api"]["details"]["mapped"]


def test_a_share_without_its_limiter_is_caught(selftest: Run, tmp_path: Path) -> None:
    """In place of the limiter: the driver itself, as when a library was built wrongly or something is
    before it."""
    libraries = tmp_path / "libraries"
    shutil.copytree(BUILT / "nvml-share", libraries / "nvml-share")
    shutil.copytree(BUILT / "test" / "driver", libraries / "cuda")
    shutil.copytree(BUILT / "cdi-hook", libraries / "cdi-hook")
    steps = selftest("--container", "process", "--native", str(libraries), "--only", "share: driver-api")
    found = steps["share: driver-api"]
    assert found["status"] == "problem"
    assert "total is" in found["found"]
    assert "the limiter was not in force" in found["found"]


NO_CUDA = """\
class version: cuda = "13.0"
__version__ = "0"
class Tensor(float):
    def sin(self): return Tensor()
    def __add__(self, other): return self
    __sub__ = __mul__ = __add__
    abs = max = sin
class nn:
    class functional: gelu = staticmethod(lambda x: x)
compile = lambda function: function
randn = lambda *_, **__: Tensor()
"""


def test_a_program_past_the_limiter_is_caught_after_others_that_were_limited(
    selftest: Run, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(NO_CUDA)
    (tmp_path / "site" / "triton.py").write_text("__version__ = '0'")
    steps = selftest(
        "--container", "process", "--only", "share: driver-api", "--only", "share: torch-compile",
        PYTHONPATH=str(tmp_path / "site"),
    )  # fmt: skip
    assert problems(steps).keys() == {"share: torch-compile"}
    assert "the limiter was not in force" in steps["share: torch-compile"]["found"]


def test_another_card_than_the_claim_s_is_caught(selftest: Run, gpu: GpuMachine) -> None:
    gpu.set_driver(uuid="GPU-11111111-2222-3333-4444-555555555555", memory=gpu.gpu.memory_bytes or 0)
    steps = selftest("--container", "process", "--only", "*: driver-api")
    assert {"whole: driver-api", "share: driver-api"} <= problems(steps).keys()
    assert f"the claim's card is {gpu.gpu.uuid}" in steps["whole: driver-api"]["found"]


def test_a_card_of_another_size_is_caught(selftest: Run, gpu: GpuMachine) -> None:
    gpu.set_driver(uuid=gpu.gpu.uuid or "", memory=40 * GIB)
    gpu.nvml.describe(gpu.machine, gpu0={"memory": str(40 * GIB)})
    steps = selftest("--container", "process", "--only", "whole: driver-api")
    assert problems(steps).keys() == {"nvidia-smi", "whole: driver-api"}
    assert "memory: koordra 143771 MiB, nvidia-smi 40960 MiB" in steps["nvidia-smi"]["found"]


def test_a_machine_without_libcuda_is_caught(selftest: Run, gpu: GpuMachine) -> None:
    for library in (gpu.root / LIBRARIES).glob("libcuda*"):
        library.unlink()
    steps = selftest("--container", "process", "--only", "whole: library-search")
    assert {"whole: spec", "whole: library-search"} <= problems(steps).keys()
    assert "no libcuda among them" in steps["whole: spec"]["found"]


CRASHES = "import os, sys\nsys.stderr.write('Fatal error\\n')\nsys.stderr.flush()\nos.abort()\n"
RAISES = "raise RuntimeError('libcuda.so cannot be loaded')\n"


@pytest.mark.parametrize(
    ("module", "failure"),
    [
        (CRASHES, "it crashed with SIGABRT: Fatal error"),
        (RAISES, "RuntimeError: libcuda.so cannot be loaded"),
    ],
)
@pytest.mark.parametrize("container", ["process", pytest.param("namespace", marks=needs_namespaces)])
def test_a_program_that_fails_is_a_problem_and_the_rest_goes_on(
    selftest: Run, tmp_path: Path, container: str, module: str, failure: str
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(module)
    steps = selftest(
        "--container", container, "--only", "share: torch", "--only", "share: nccl", "--only", "whole: cupy",
        PYTHONPATH=str(tmp_path / "site"),
    )  # fmt: skip
    assert problems(steps).keys() == {"share: torch", "share: nccl"}
    assert steps["share: torch"]["found"] == failure
    assert steps["share: torch"]["details"]["withoutKoordra"] == failure
    assert "it fails without koordra too" in steps["share: torch"]["remedy"]
    assert steps["whole: cupy"]["status"] == "skipped"


def test_a_budget_that_ends_leaves_the_rest_out(selftest: Run, tmp_path: Path) -> None:
    """A program that hangs has what is left of the budget; what comes after it is skipped with that
    reason."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("import time\ntime.sleep(600)\n")
    steps = selftest(
        "--container", "process", "--budget", "12", "--only", "*: torch", "--only", "*: nccl",
        PYTHONPATH=str(tmp_path / "site"),
    )  # fmt: skip
    assert "and was killed" in steps["share: torch"]["found"]
    assert steps["whole: nccl"]["reason"] == "the budget of 12 s is used up"


def test_a_machine_without_a_card_says_so_and_tries_nothing(selftest: Run, gpu: GpuMachine) -> None:
    shutil.rmtree(gpu.root)
    gpu.root.mkdir()
    steps = selftest("--container", "process")
    assert problems(steps).keys() == {"driver", "discovery"}
    assert steps["claims"]["reason"].endswith("none")
