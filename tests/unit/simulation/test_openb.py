"""Reading traces, and the order and number of arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import Request
from koordra.simulation.openb import TracePod, read_nodes, read_pods
from koordra.simulation.replay import arrivals, cluster_of

NODES = """sn,cpu_milli,memory_mib,gpu,model
a,64000,262144,2,T4
b,96000,786432,8,G2
c,96000,786432,8,G2
""".splitlines()
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
p1,12000,16384,1,1000,,LS
p2,6000,12288,1,460,V100M32|V100M16,LS
p3,4000,1024,0,0,,BE
""".splitlines()


def test_lists_become_values() -> None:
    cluster = cluster_of(read_nodes(NODES), scale=2)
    assert [(kind.model, kind.gpus) for kind in cluster.kinds] == [("T4", 2), ("G2", 8)]
    assert (len(cluster.nodes), cluster.capacity) == (6, 36000)
    pods = read_pods(PODS)
    assert pods[1].request == Request(6000, 12288, 1, 460, ("V100M16", "V100M32"))
    assert pods[2].request.share == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("p,1,1,1,2000,,LS", "line 2: gpu_milli: is 2000"),
        ("p,1,1,2,500,,LS", "only one GPU can be shared"),
        ("p,many,1,1,500,,LS", "line 2: cpu_milli: is 'many'"),
        ("p,-1,1,1,500,,LS", "not negative"),
        ("p,1", "num_gpu: is missing"),
    ],
)
def test_a_bad_line_is_named(line: str, words: str) -> None:
    with pytest.raises(InvalidManifest, match="pods line 2") as caught:
        read_pods([PODS[0], line])
    assert words in str(caught.value)


def test_a_list_without_columns_is_refused() -> None:
    with pytest.raises(InvalidManifest, match="has no column cpu_milli, gpu"):
        read_nodes(["sn,model", "a,T4"])


def _pods(count: int, milli: int) -> list[TracePod]:
    return [TracePod(f"p{number:03}", Request(1000 + number, 0, 1, milli)) for number in range(count)]


def test_few_pods_are_drawn_again_and_many_are_thinned() -> None:
    few = arrivals(_pods(10, 1000), 16000, generator=np.random.default_rng(1))
    assert len(few) == 20
    assert set(few[:10]) == {pod.request for pod in _pods(10, 1000)}
    many = arrivals(_pods(100, 1000), 16000, generator=np.random.default_rng(1))
    assert len(many) == 20
    assert len(set(many)) == 20


def test_the_order_is_the_seeds_and_not_the_lists() -> None:
    pods = _pods(50, 500)
    first = arrivals(pods, 20000, generator=np.random.default_rng(3))
    assert first == arrivals(pods[::-1], 20000, generator=np.random.default_rng(3))
    assert first != arrivals(pods, 20000, generator=np.random.default_rng(4))


def test_pods_without_gpus_end() -> None:
    pods = [TracePod("a", Request(1000, 0, 0, 0))]
    assert len(arrivals(pods, 8000, generator=np.random.default_rng(1))) == 1
