"""`koordra controller`, `koordra kubelet-plugin`, `koordra nri`: the processes that run in a cluster."""
