"""Compilers of pieces: Inductor by default, two that only interpret, and those of plug-ins."""
