"""What all tests share: threads that do not wait for a time slice where the cores are busy."""

import os

# libgomp reads it when torch is imported, which no test has done yet.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
