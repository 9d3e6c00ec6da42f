"""The worker's state machine: messages and completions in, launches and messages out, no I/O."""
