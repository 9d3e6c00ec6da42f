"""Kernels that plan for the SMs of a partition, not for the whole GPU."""
