"""dcgm-exporter as it is shipped beside koordra: its series, as it prints them and Prometheus keeps them,
joined to pod and claim by the shipped rules in Debian's Prometheus."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.e2e.prometheus import DEPLOY, Question, Scrapes, ask

pytestmark = pytest.mark.e2e

OLD, NEW = "Hostname", "hostname"
"""How releases of dcgm-exporter up to 4.8.2 call the node, and those that come after."""


def exported(
    uuid: str,
    value: float,
    *,
    instance: str = "",
    exporter: str = "x",
    name: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    host: str = OLD,
    **mapped: str,
) -> str:
    """A line as dcgm-exporter prints it and Prometheus keeps it; `mapped`: by its own Kubernetes mapping,
    which Prometheus renames, since the exporter's own pod has these labels."""
    labels = {
        "gpu": "0",
        "UUID": uuid,
        "pci_bus_id": "00000000:0F:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H100 80GB HBM3",
        **({"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": instance} if instance else {}),
        host: "node-a",
        "DCGM_FI_DRIVER_VERSION": "570.86.15",
        "container": "dcgm-exporter",
        "pod": f"dcgm-exporter-{exporter}",
        "namespace": "gpu-operator",
        **{f"exported_{key}": each for key, each in mapped.items()},
    }
    return f"{name}{{{','.join(f'{a}={chr(34)}{b}{chr(34)}' for a, b in labels.items())}}} {value}\n"


def granted(uuid: str, pod: str, *, claim: str = "gpu", instance: str = "", container: str = "c") -> str:
    labels = f'namespace="team",pod="{pod}",container="{container}",claim="{claim}",device="d",UUID="{uuid}"'
    return f'koordra_container_gpu_granted_cores{{{labels},GPU_I_ID="{instance}"}} 50\n'


@pytest.mark.parametrize("host", [OLD, NEW])
def test_what_dcgm_exporter_says_is_joined_to_pod_and_claim_and_nothing_counts_twice(
    tmp_path: Path, binaries: Path, host: str
) -> None:
    name, shown = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", partial(exported, host=host)
    series = [
        # A card of one pod with two containers, by an exporter that two of Prometheus' targets are of.
        shown("GPU-a", 0.5),
        shown("GPU-a", 0.5, exporter="y"),
        granted("GPU-a", "alone"),
        granted("GPU-a", "alone", container="sidecar"),
        # A card that two pods share, which the exporter's own mapping shows once for each of them.
        shown("GPU-b", 0.75, pod="left"),
        shown("GPU-b", 0.75, pod="right"),
        granted("GPU-b", "left", claim="l"),
        granted("GPU-b", "right", claim="r"),
        # A card in MIG mode, itself beside its instances; one of these is held.
        shown("GPU-c", 0.9),
        shown("GPU-c", 0.25, instance="7"),
        shown("GPU-c", 0.125, instance="8"),
        granted("GPU-c", "sliced", claim="m", instance="7"),
        # One that nobody has.
        shown("GPU-d", 0.0625),
    ]
    scrapes = Scrapes()
    scrapes.take({"any": "".join(series)}, minutes=5)
    card = f'{host}="node-a", modelName="NVIDIA H100 80GB HBM3"'
    slice_ = f'GPU_I_PROFILE="1g.10gb", {card}'
    by_pod = f"namespace_pod_claim:{name}:max"
    ask(
        tmp_path,
        binaries,
        [
            (
                "joined",
                scrapes,
                [
                    Question(
                        by_pod,
                        4,
                        {
                            f'{by_pod}{{namespace="team", pod="alone", claim="gpu", UUID="GPU-a", {card}}}': 0.5,
                            f'{by_pod}{{UUID="GPU-b", {card}}}': 0.75,
                            f'{by_pod}{{namespace="team", pod="sliced", claim="m", UUID="GPU-c", GPU_I_ID="7", {slice_}}}': 0.25,
                            f'{by_pod}{{UUID="GPU-c", GPU_I_ID="8", {slice_}}}': 0.125,
                            f'{by_pod}{{UUID="GPU-d", {card}}}': 0.0625,
                        },
                    ),
                    Question(f"sum({by_pod})", 4, {"{}": 0.5 + 0.75 + 0.25 + 0.125 + 0.0625}),
                ],
            )
        ],
    )


def test_every_joined_figure_is_one_that_dcgm_exporter_has_where_nobody_changed_its_list(
    tmp_path: Path, binaries: Path
) -> None:
    """One card of one pod; and one that two share while the exporter knows of sharing
    (KUBERNETES_VIRTUAL_GPUS): the figures of the card itself, then a row for each pod with what its processes
    have, which of the card is a part."""
    joined = {
        "DCGM_FI_DEV_GPU_UTIL": (90.0, 30.0, 40.0),
        "DCGM_FI_DEV_FB_USED": (3072.0, 1024.0, 2048.0),
        "DCGM_FI_DEV_POWER_USAGE": (250.5, 250.5, 250.5),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.5, 0.5, 0.5),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.25, 0.25, 0.25),
        "DCGM_FI_PROF_DRAM_ACTIVE": (0.125, 0.125, 0.125),
    }
    rules = yaml.safe_load((DEPLOY / "prometheus-rules" / "dcgm.yaml").read_text())["spec"]["groups"][0][
        "rules"
    ]
    by_pod = {rule["record"] for rule in rules if rule["record"].startswith("namespace_pod_claim:")}
    assert by_pod == {f"namespace_pod_claim:{name}:max" for name in joined}
    series = [
        granted("GPU-a", "alone"),
        granted("GPU-b", "left", claim="l"),
        granted("GPU-b", "right", claim="r"),
    ]
    questions = []
    for name, (card, left, right) in joined.items():
        whole = name.startswith(("DCGM_FI_DEV_GPU", "DCGM_FI_DEV_FB"))
        series += [
            exported("GPU-a", card, name=name, pod="alone", namespace="team", container="c"),
            *([exported("GPU-b", card, name=name)] if whole else ()),
            exported("GPU-b", left, name=name, pod="left", namespace="team", container="c", pod_uid="1"),
            exported("GPU-b", right, name=name, pod="right", namespace="team", container="c", pod_uid="2"),
        ]
        record = f"namespace_pod_claim:{name}:max"
        where = 'Hostname="node-a", modelName="NVIDIA H100 80GB HBM3"'
        wanted = {
            f'{record}{{namespace="team", pod="alone", claim="gpu", UUID="GPU-a", {where}}}': card,
            f'{record}{{UUID="GPU-b", {where}}}': card,
        }
        questions += [Question(record, 4, wanted), Question(f"sum({record})", 4, {"{}": 2 * card})]
    scrapes = Scrapes()
    scrapes.take({"any": "".join(series)}, minutes=5)
    ask(tmp_path, binaries, [("as shipped", scrapes, questions)])
