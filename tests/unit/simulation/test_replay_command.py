"""`koordra replay`: its document, its picture, its complaints."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from koordra.cli.debug import leftover_table
from koordra.cli.replay import command
from koordra.errors import KoordraError

DLRM = "instance_sn,role,app_name,cpu_request,gpu_request,rdma_request,memory_request,creation_time,deletion_time"


@pytest.fixture
def lists(tmp_path: Path) -> tuple[str, str]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{i},64000,262144,4,T4\n" for i in range(6))
    )
    rows = [f"p{i:02},{1000 * (i % 7)},1024,1,{(1000, 810, 190, 500)[i % 4]},\n" for i in range(40)]
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(rows))
    return str(nodes), str(pods)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


def test_the_document(lists: tuple[str, str], tmp_path: Path) -> None:
    plot, table = tmp_path / "plot.svg", tmp_path / "table.json"
    found = _run(
        *("--nodes", lists[0], "--pods", lists[1], "--policy", "fgd,koordra,random", "--seeds", "42-43"),
        *("-o", "json", "--plot", str(plot), "--save-table", str(table)),
    )
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert [(run["policy"], run["seed"]) for run in document["runs"]] == [
        (name, seed) for name in ("fgd", "koordra", "random") for seed in (42, 43)
    ]
    run = document["runs"][0]
    assert set(run) == {
        *("policy", "seed", "arrivals", "alloc_pct_100", "alloc_pct_130", "unallocated_gpus_130"),
        *("frag_pct_100", "elapsed_s", "decision_us"),
    }
    assert set(run["decision_us"]) == {"p50", "p99", "max"}
    assert run["unallocated_gpus_130"] == pytest.approx((100 - run["alloc_pct_130"]) * 24 / 100, abs=0.01)
    assert {"policy", "alloc_pct_130_mean", "alloc_pct_130_std"} <= set(document["summary"][0])
    assert (
        len(list(ElementTree.fromstring(plot.read_text()).iter("{http://www.w3.org/2000/svg}polyline"))) == 6
    )
    again = _run("--nodes", lists[0], "--pods", lists[1], "--table", str(table), "-o", "json")
    own = [one for one in document["runs"] if one["policy"] == "koordra" and one["seed"] == 42]
    assert json.loads(again.stdout)["runs"][0]["alloc_pct_130"] == own[0]["alloc_pct_130"]
    shown = CliRunner().invoke(leftover_table, [str(table)])
    assert shown.exit_code == 0
    assert "190" in shown.output
    assert "learned from 40 pods" in shown.output


def test_how_much_arrives_and_where_is_said(lists: tuple[str, str]) -> None:
    def arrivals(*more: str) -> int:
        found = _run("--nodes", lists[0], "--pods", lists[1], "--policy", "random", "-o", "json", *more)
        return int(json.loads(found.stdout)["runs"][0]["arrivals"])

    usual = arrivals()
    assert arrivals("--tune-ratio", "2.6") > 1.8 * usual > 2.7 * arrivals("--tune-ratio", "0.65")
    assert arrivals("--scale", "2") > 1.8 * usual


def test_what_is_known_of_the_workload_is_of_use(lists: tuple[str, str]) -> None:
    def allocated(start: str) -> float:
        found = _run(
            "--nodes", lists[0], "--pods", lists[1], "--start", start, "--seeds", "42-45", "-o", "json"
        )
        return sum(float(run["alloc_pct_100"]) for run in json.loads(found.stdout)["runs"])

    assert allocated("learned") > allocated("unknown")


def test_a_table_is_for_people(lists: tuple[str, str]) -> None:
    found = _run("--nodes", lists[0], "--pods", lists[1], "--start", "unknown", "--scale", "2")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0].split()[:2] == ["POLICY", "SEED"]
    assert max(map(len, lines)) <= 80
    assert [line.split()[1] for line in lines if line.startswith("koordra ")] == ["42", "mean"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "greedy"), "'greedy' is not a policy"),
        (("--seeds", "x"), "write 42-51"),
        (("--seeds", "5-4"), "has no seed"),
        (("--machine", "hgx-h100"), "--machine says nothing of a list of OpenB pods"),
        (("--save-table", "t", "--start", "unknown"), "replay koordra with --start learned"),
        (("--save-table", "t", "--policy", "random"), "replay koordra with --start learned"),
        (("--save-table", "t", "--table", "t"), "and without --table"),
    ],
)
def test_complaints(lists: tuple[str, str], arguments: tuple[str, ...], words: str) -> None:
    found = _run("--nodes", lists[0], "--pods", lists[1], *arguments)
    assert found.exit_code == 2
    assert words in found.output


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    found = _run("--pods", str(tmp_path / "none.csv"))
    assert isinstance(found.exception, KoordraError)
    assert "none.csv" in str(found.exception)


def test_dlrm_reports_alignment(tmp_path: Path) -> None:
    pods = tmp_path / "dlrm.csv"
    rows = [f"i{i},HN,a,8,1,25,40,{i if i > 8 else ''},{100 + i if i % 3 else ''}" for i in range(40)]
    rows.append("c,CN,a,8,0,1,40,,")
    pods.write_text("\n".join([DLRM, *rows]))
    found = _run("--pods", str(pods), "--machine", "dgx-a100", "--machines", "5", "-o", "json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["instances_without_gpu"] == 1
    koordra, blind = document["runs"]
    assert (koordra["policy"], blind["policy"]) == ("koordra", "first-fit")
    assert koordra["aligned_pct"] == koordra["best_level_pct"] == 100
    assert blind["aligned_pct"] < 100
    given = "--pods", str(pods)
    other = json.loads(_run(*given, "--machine", "pcie-a100x8-2nic", "--machines", "3", "-o", "json").stdout)
    assert (other["machine"], other["nodes"]) == ("pcie-a100x8-2nic", 3)
    assert other["runs"] != document["runs"]
    refused = _run(*given, "--scale", "2")
    assert "--scale says nothing of a list of DLRM pods" in refused.output
