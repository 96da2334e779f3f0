"""Stands for Triton beside the fake PyTorch."""

__version__ = "3.6.0"
