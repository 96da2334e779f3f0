"""The container runtime of a node.

runtime              which it is, and its settings that matter to devices
containerd_config    containerd's files, crio_config CRI-O's; toml_settings reads them with their lines
systemd_unit         settings of the runtime's service
cri_client           what the running runtime says of itself
"""
