"""A program that finds its cards as vLLM does, and prints the number of each on the node.

vLLM (vllm/platforms/interface.py, `device_id_to_physical_device_id`; before 0.8 in platforms/cuda.py) takes
every entry of CUDA_VISIBLE_DEVICES for a number, up to 0.20 at least. Where the variable is there and empty,
older versions refuse to start and newer ones take it for absent; this is the strictest of them. Argument: how
many cards it has.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "CUDA_VISIBLE_DEVICES"


def number_on_node(card: int) -> int:
    if VARIABLE not in os.environ:
        return card
    listed = os.environ[VARIABLE].split(",")
    if listed == [""]:
        raise RuntimeError(f"{VARIABLE} is empty: no GPU is to be used")
    return int(listed[card])


if __name__ == "__main__":
    print(",".join(str(number_on_node(card)) for card in range(int(sys.argv[1]))))
