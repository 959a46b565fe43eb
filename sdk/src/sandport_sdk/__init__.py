"""Write a Sandport provider: `v1` has what a provider imports, `worker.serve` runs it, `testing` tests it."""
