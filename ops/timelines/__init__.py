"""What `tandem timeline` is made of: the trace, and the figures that follow from it."""
