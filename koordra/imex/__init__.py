"""`koordra imex`: NVIDIA's IMEX daemon of a node, for the domain that the node is in.

    config_files   what the daemon reads: imexd.cfg, nodes.cfg, the hosts of the names there (pure)
    daemon         one run of nvidia-imex, in the root of the GPU driver
    supervisor     the daemon runs as the plugin's domain.json says, and status.json says how far it is

It is not the plugin's child: an update of the plugin would take the memory away under the jobs that run.
`koordra imex` is a DaemonSet of its own, updated when its node is in no domain.
"""
