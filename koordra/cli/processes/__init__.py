"""The processes that run in a cluster: `koordra controller`, `kubelet-plugin`, `nri` and `imex`."""
