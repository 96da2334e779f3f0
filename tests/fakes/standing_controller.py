"""`koordra controller` as it ships, but its worker stands still where it is about to place a claim, while a
file is there: `python -m tests.fakes.standing_controller FILE controller --kubeconfig ...`. Its Lease is over
after 10 seconds instead of 15, and its watchdog looks twice a second, and ends nothing."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.process import progress, watchdog


def main() -> None:
    here, step = Path(sys.argv.pop(1)), progress.step

    def stands_still() -> None:
        while here.exists():
            time.sleep(0.05)

    def step_or_stand() -> None:
        at = sys._getframe(1).f_code.co_name
        if at == "place" and threading.current_thread().name == "worker":
            stands_still()
        step()

    progress.step = step_or_stand
    watchdog.PERIOD = 0.5  # type: ignore[misc]
    watchdog.MOST_LOOKS = 10**9  # type: ignore[misc]
    LeaseTimes.__init__.__defaults__ = (10.0, 0.5, 5.0)  # type: ignore[attr-defined]

    from koordra.cli.main import main as koordra

    koordra()


if __name__ == "__main__":
    main()
