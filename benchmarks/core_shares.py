"""What shares of a card's time get: real processes behind the real limiter on the double of the driver, in
virtual time, with the node's sampler at its own pace. The least and the most in any second; of shares below
10 % over 10 s.

    python -m benchmarks core_shares
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._results import table, write
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.sampled_card import SECOND, SHARES, node_with
from tests.unit.limiter.native_build import build

SMS = (1, 108, 132, 188)
SMALL = {
    "one, one and ninety-eight": [(1, "PLAIN"), (1, "SHORT"), (98, "PLAIN")],
    "twenty of one": [(1, "PLAIN"), (1, "SHORT")] * 10,
}


def parts(tenants: Sequence[tuple[int, str]], sms: int, *, seconds: int) -> list[tuple[float, float]]:
    """In windows of so many seconds, within twice as many (of one second: of two)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        nvml = FakeNvml(Path(name), nvml_library.build(), Path(name))
        nvml.order()
        os.environ |= {
            key: value for key, value in nvml.environment.items() if key.startswith("KOORDRA_FAKE")
        }
        with node_with(build(), nvml, tenants, sms=sms) as node:
            node.run(SECOND)
            span = 2 * SECOND if seconds == 1 else seconds * SECOND
            return node.card.parts(span, look=node.look, window=seconds * SECOND)


def rows() -> Iterator[tuple[str, int, str, float]]:
    """What, on how many multiprocessors, each share and what it got, and the worst difference in points."""
    for name, tenants in {**SHARES, **SMALL}.items():
        for sms in SMS:
            found = parts(tenants, sms, seconds=10 if name in SMALL else 1)
            worst = max(
                max(percent - least, most - percent)
                for (percent, _), (least, most) in zip(tenants, found, strict=True)
            )
            of = dict.fromkeys(
                f"{percent} {load}: {least:.1f} to {most:.1f}"
                for (percent, load), (least, most) in zip(tenants, found, strict=True)
            )
            yield name, sms, "; ".join(of), round(worst, 2)


def main() -> None:
    HostProcesses.all_seen = True  # type: ignore[assignment,method-assign]  as in the host's namespace
    found = list(rows())
    text = table(
        ("shares", "multiprocessors", "percent of the time, least to most", "points beside, at worst"), found
    )
    write(
        "core-shares",
        {"rows": found},
        f"# Shares of a GPU's time\n\n{(__doc__ or '').partition('    python')[0]}\n{text}",
    )
    print(text)


if __name__ == "__main__":
    main()
