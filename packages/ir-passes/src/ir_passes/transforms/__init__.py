"""The passes that ship: one file each, named after what it does."""
