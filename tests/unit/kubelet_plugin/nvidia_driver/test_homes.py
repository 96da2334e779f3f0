"""Every home of a driver is found, with its files, its device nodes and its NVML; others are refused in
words."""

from __future__ import annotations

import _ctypes
import shutil
from functools import partial
from pathlib import Path

import pytest

from koordra.kubelet_plugin.nvidia_driver.driver_files import driver_files
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot, Home
from koordra.kubelet_plugin.nvidia_driver.homes import FoundHome, HomeSource, HostRoot, find_home, named_home
from tests.fakes import driver_homes
from tests.fakes.driver_homes import HOMES, VERSION
from tests.fakes.driver_tree import shared_object


def homes(host: Path) -> HomeSource:
    return HomeSource(HostRoot(host, Path("/")), root=host)


def home_of(host: Path) -> DriverRoot:
    found = homes(host).now()
    assert found.driver is not None
    assert found.problems == ()
    return found.driver


@pytest.fixture
def host(tmp_path: Path) -> Path:
    driver_homes.module(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", HOMES)
def test_every_home_is_found(host: Path, kind: str) -> None:
    build, root, folder = HOMES[kind]
    build(host)
    found = homes(host).now()
    assert found.driver is not None
    assert (found.driver.on_host, found.version) == (Path(root), VERSION)
    library = f"{root.lstrip('/')}/{folder}/libnvidia-ml.so.{VERSION}".lstrip("/")
    assert found.nvml == host / library


@pytest.mark.parametrize("kind", HOMES)
def test_its_libraries_and_programs_become_mounts_in_the_hosts_names(host: Path, kind: str) -> None:
    build, root, folder = HOMES[kind]
    build(host)
    mounts = driver_files(home_of(host), VERSION).edits().mounts
    sources = {mount.container_path.rpartition("/")[2]: mount.host_path for mount in mounts}
    assert sources[f"libcuda.so.{VERSION}"] == f"{root.rstrip('/')}/{folder}/libcuda.so.{VERSION}"
    assert sources["nvidia-smi"].startswith(root)
    assert (host / sources["nvidia-smi"].lstrip("/")).is_file()


@pytest.mark.parametrize("kind", HOMES)
def test_its_device_nodes_are_its_own_where_it_has_some(host: Path, kind: str) -> None:
    build, root, _ = HOMES[kind]
    build(host)
    expected = Path(root, "dev") if "driver container" in kind else Path("/dev")
    driver = home_of(host)
    assert driver.dev_on_host == expected
    assert driver.dev == host / str(expected).lstrip("/")


def test_a_driver_container_without_device_nodes_uses_the_hosts(host: Path) -> None:
    driver_homes.driver_container(host)
    shutil.rmtree(host / "run/nvidia/driver/dev")
    assert home_of(host).dev_on_host == Path("/dev")


def test_of_several_homes_that_of_the_loaded_module_counts(host: Path) -> None:
    """A node that had packages of an older driver, and then got a driver container."""
    driver_homes.libraries(host / "usr/lib64", "550.54.15")
    driver_homes.driver_container(host)
    assert home_of(host).kind is Home.DRIVER_CONTAINER
    driver_homes.module(host, "550.54.15")
    assert home_of(host).kind is Home.HOST


def test_of_several_libraries_of_a_home_that_of_the_loaded_module_counts(host: Path) -> None:
    driver_homes.libraries(host / driver_homes.MULTI_ARCH, "550.54.15")
    driver_homes.libraries(host / "usr/lib64")
    assert homes(host).now().nvml == host / f"usr/lib64/libnvidia-ml.so.{VERSION}"


def test_a_library_of_an_unknown_version_yields_to_the_modules(host: Path) -> None:
    (host / "usr/lib64").mkdir(parents=True)
    (host / "usr/lib64/libnvidia-ml.so.1").write_bytes(shared_object("libnvidia-ml.so.1"))
    assert home_of(host).kind is Home.HOST
    driver_homes.driver_container(host)
    assert home_of(host).kind is Home.DRIVER_CONTAINER


def test_a_driver_that_is_still_being_unpacked_is_none(host: Path) -> None:
    """Who loads a library whose segments are not all there ends by SIGBUS."""
    driver_homes.rhel(host)
    whole = Path(_ctypes.__file__).read_bytes()
    for name in ("libnvidia-ml.so", "libcuda.so"):
        (host / f"usr/lib64/{name}.{VERSION}").write_bytes(whole[:8192])
    found = homes(host).now()
    assert (found.driver, [problem.field for problem in found.problems]) == (None, ["libnvidia-ml.so.1"])
    (host / f"usr/lib64/libnvidia-ml.so.{VERSION}").write_bytes(whole)
    home = home_of(host)
    assert not driver_files(home, VERSION).has_libcuda
    (host / f"usr/lib64/libcuda.so.{VERSION}").write_bytes(whole)
    assert driver_files(home, VERSION).has_libcuda


def test_links_that_go_in_circles_are_no_driver(host: Path) -> None:
    driver_homes.rhel(host)
    for name in (f"libnvidia-ml.so.{VERSION}", f"libcuda.so.{VERSION}"):
        (host / "usr/lib64" / name).unlink()
        (host / "usr/lib64" / name).symlink_to(name.replace(VERSION, "1"))
    (host / "run/nvidia").mkdir(parents=True)
    (host / "run/nvidia/driver").symlink_to("/run/nvidia/driver/..")
    (host / "usr/local").mkdir()
    (host / "usr/local/nvidia").symlink_to("nvidia")
    found = homes(host).now()
    assert (found.driver, found.searched) == (None, (Path("/"),))


def test_libraries_of_another_version_than_the_module_are_said(host: Path) -> None:
    driver_homes.debian(host)
    driver_homes.module(host, "535.1.2")
    found = homes(host).now()
    assert (found.version, found.loaded, found.matches) == (VERSION, "535.1.2", False)
    (problem,) = found.problems
    assert "535.1.2" in problem.problem
    assert VERSION in problem.problem


def test_a_module_without_libraries_is_said_with_the_places(host: Path) -> None:
    (host / "run/nvidia/driver").mkdir(parents=True)
    found = homes(host).now()
    assert found.driver is None
    (problem,) = found.problems
    assert "/run/nvidia/driver" in problem.problem
    assert "--driver-root" in problem.remedy


def test_no_driver_at_all_is_no_problem(tmp_path: Path) -> None:
    """A node without GPUs."""
    assert homes(tmp_path).now() == FoundHome(searched=(Path("/"),))


def test_a_driver_that_comes_later_moves_and_goes_is_noticed(host: Path) -> None:
    source = homes(host)
    assert source.now().driver is None
    driver_homes.driver_container(host)
    assert str(source.now()) == (
        "driver container below /run/nvidia/driver, device nodes in /run/nvidia/driver/dev, "
        f"version {VERSION}"
    )
    shutil.rmtree(host / "run/nvidia/driver")
    driver_homes.cos(host)
    assert source.now().driver == find_home(HostRoot(host, Path("/")), loaded=VERSION).driver
    assert source.nvml() == host / f"home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.{VERSION}"


def test_the_operators_word_stands(host: Path) -> None:
    driver_homes.debian(host)
    driver_homes.libraries(host / "srv/driver/usr/lib64", "570.1.2")
    named = partial(named_home, host / "srv/driver", HostRoot(host, Path("/")))
    source = HomeSource(HostRoot(host, Path("/")), root=host, named=named)
    found = source.now()
    assert (found.driver, found.version, found.matches) == (named(), "570.1.2", False)
    assert (named().on_host, named().dev_on_host) == (Path("/srv/driver"), Path("/dev"))
    (host / "srv/driver/dev").mkdir()  # comes later, as all of it may
    with_dev = source.now().driver
    assert with_dev is not None
    assert (with_dev.dev, with_dev.dev_on_host) == (host / "srv/driver/dev", Path("/srv/driver/dev"))


def test_a_verdict_about_a_place_without_a_driver_does_not_count(host: Path) -> None:
    driver_homes.driver_container_said(host)
    shutil.rmtree(host / "opt/driver/usr")
    driver_homes.rhel(host)
    assert home_of(host).kind is Home.HOST


def test_links_of_a_home_stay_on_the_host(host: Path) -> None:
    driver_homes.libraries(host / "srv/real/lib64")
    (host / "usr/local").mkdir(parents=True)
    (host / "usr/local/nvidia").symlink_to("/srv/real")
    assert home_of(host).on_host == Path("/srv/real")


@pytest.mark.parametrize(("mark", "word"), [("dev/dxg", "WSL"), ("etc/nv_tegra_release", "Tegra")])
def test_machines_whose_driver_is_of_another_kind_are_refused_in_words(
    host: Path, mark: str, word: str
) -> None:
    driver_homes.debian(host)
    (host / mark).parent.mkdir(exist_ok=True)
    (host / mark).write_text("")
    found = homes(host).now()
    assert found.driver is None
    (problem,) = found.problems
    assert word in problem.problem
