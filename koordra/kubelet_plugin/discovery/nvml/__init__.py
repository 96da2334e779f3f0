"""What NVML says about the GPUs.

query       the facts of a GPU, their sources, and single calls, which may fail
library     the real library; the only importer of pynvml
mig         MIG mode, profiles and instances
recorded    the same facts from a file, for captured and made-up machines
"""
