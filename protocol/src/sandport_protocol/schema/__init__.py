"""The published JSON Schema of the protocol, and what generates it."""
