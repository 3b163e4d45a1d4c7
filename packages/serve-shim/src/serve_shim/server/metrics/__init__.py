"""Prometheus metrics of one server, in a registry of its own."""
