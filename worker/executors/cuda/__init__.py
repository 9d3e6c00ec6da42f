"""Two lanes on green contexts of one GPU."""
