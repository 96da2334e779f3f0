"""The controller's process as it ships, but its Lease is over after 6 seconds instead of 15, so that a test
can kill many leaders: `python -m tests.fakes.short_lease_controller --kubeconfig FILE --identity NAME`."""

from __future__ import annotations

import argparse

from koordra.process import lifecycle

TIMES = {"lease": 6.0, "retry": 0.5, "timeout": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--identity", required=True)
    given = parser.parse_args()
    stop = lifecycle.stop_on_signals()

    from koordra import logs
    from koordra.controller.reconcile.leadership import LeaseTimes
    from koordra.controller.run import run
    from koordra.controller.settings import Settings
    from koordra.kube.kubeconfig import new_client

    logs.configure(level="info", json=False, process="controller")
    client = new_client(given.kubeconfig, timeout=TIMES["timeout"], user_agent="koordra-controller")
    run(client, Settings(given.identity, times=LeaseTimes(**TIMES)), stop=stop)


if __name__ == "__main__":
    main()
