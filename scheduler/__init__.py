"""The scheduler: a replaceable controller that turns worker events into plans."""
