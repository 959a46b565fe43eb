"""Files in and out of a sandbox that is not a directory of this machine: over a socket, or over a command.

`far_files` is what can be asked, `far` the side that answers, `inward` and `outward` are the two directions; the bytes
of an archive go `by_socket`, or through a command that `shell` runs. `script` is what the sandbox's own shell does with
them. The tree, its excludes, its confinement and its staging are this side's (`sandport.sync`); the sandbox gives a
shell, a tar and a rename.
"""
