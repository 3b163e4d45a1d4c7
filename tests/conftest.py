"""What all tests share: no compile cache, and threads that do not wait for a time slice."""

import os

# libgomp reads it when torch is imported, which no test has done yet.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# Tests compile afresh, and leave the user's cache alone; those of the cache name one of their own.
os.environ.setdefault("IR_DISABLE_COMPILE_CACHE", "1")
