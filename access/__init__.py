"""Access control: principals, their rights, and the right that each operation needs."""
