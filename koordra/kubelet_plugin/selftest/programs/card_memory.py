"""How much memory of a card is in use at most, by the driver's own word, until standard input ends.

card_memory LIBRARY UUID      LIBRARY: the machine's own libnvidia-ml.so.1

Says so once it watches, and in the end what was in use at first and at most, in bytes. It runs on the
machine, beside the containers: what NVML says there is not the limiter's word."""

from __future__ import annotations

import json
import select
import sys

from koordra.kubelet_plugin.selftest.programs.nvml import Nvml

EVERY = 0.02


def watch() -> None:
    nvml = Nvml(sys.argv[1])
    card = next(each for each in nvml.cards() if nvml.uuid(each) == sys.argv[2])
    first = most = nvml.memory(card)[1]
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        most = max(most, nvml.memory(card)[1])
    sys.stdout.write(json.dumps([first, most]) + "\n")


if __name__ == "__main__":
    watch()
