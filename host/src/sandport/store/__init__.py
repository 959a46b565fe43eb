"""The host's books: sandboxes, leases, who uses them, and what was done, on disk before it happens.

`store.Store` is what the host calls, `sqlite.SqliteStore` the one on this machine; `records` are the rows, `states` the
tables of what may follow what, `errors` the ways to fail. Importing the package imports none of them.
"""
