"""Offline profiling of one model on one device, for the scheduler's estimator."""
