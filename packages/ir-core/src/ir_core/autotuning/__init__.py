"""Timing chooses among implementations that may run, before the first request; then no more."""
