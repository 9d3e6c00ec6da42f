"""Devices behind one interface: CUDA, CPU, simulated."""
