"""What Tandem's processes say to each other: messages, codec, link and transports.

The only package that the worker, the scheduler and the gateway all import; it imports none of
them, and no torch.
"""

PROTOCOL_VERSION = 1
"""Sent in every hello. A peer of another version is refused, never misread."""
