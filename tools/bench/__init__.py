"""Benches of the project beside others: servers under load, and kernels against memory."""
