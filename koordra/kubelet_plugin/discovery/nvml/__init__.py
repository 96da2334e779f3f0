"""What NVML says about the GPUs.

gpu_facts    the facts of a GPU, and the protocol of their sources
library      the real library; the only importer of pynvml
query        single calls, and how they may fail
links        NVLinks, peer access, the fabric
mig          MIG mode, profiles and instances
recorded     the same facts from a file, for captured and made-up machines
"""
