"""`koordra node selftest`: what koordra does to a container, tried out on a machine with a GPU and no
Kubernetes.

Claims are prepared by the plugin's own code for a whole card and for shares, the CDI specs that come out
are applied to containers made here, and programs in those say what they see: the driver API, the library
searches of ctypes and Triton, PyTorch, CuPy, JAX, NCCL, nvidia-smi. Each is a step that says ok, problem or
skipped, and why.

report           a step and its verdict; the report, written anew after every step
machine/         the machine as koordra and as nvidia-smi see it
claims           claims that no API server has, prepared by the plugin's code
spec_edits       what a CDI spec changes in a container, read as a runtime reads it
container        a container around one program: namespaces where they are allowed, else a plain process
namespace_init   the process that makes such a container out of this machine's own root
program_runs     a program in a child with a deadline, and what it answered
judgement        whether an answer is what the claim promises: pure
limiter_watch    what the limiter and the card say while a program runs
trials           programs in containers with a claim, run and judged
program_checks   which programs run in which claim, in which order
fabric           ib_write_bw and NCCL between two machines
course           the steps in their order, within a budget of seconds
programs/        what runs in the containers: nothing but Python and the library that is tried
"""
