"""Graph capture: runners that record a program for fixed memory and replay it, and its sizes."""
