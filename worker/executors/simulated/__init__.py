"""A latency model in place of a device."""
