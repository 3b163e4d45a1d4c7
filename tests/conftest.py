"""What all tests share: how a test starts a process and is sure that it ended."""
