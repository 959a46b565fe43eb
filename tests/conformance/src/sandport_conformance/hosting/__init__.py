"""The mirror of the kit: misbehaving workers for a host, and what the host must do about them. See HOSTS.md."""
