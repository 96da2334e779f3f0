"""koordra: GPUs, GPU shares and RDMA NICs, allocated together through Dynamic Resource Allocation."""

__version__ = "0.1.0a1"
