"""Sandboxes and leases as the host's journal has them: acquired, ended, cleaned up after, and found again."""
