"""Carriers of frames: ZeroMQ between processes, in memory for tests and simulation."""
