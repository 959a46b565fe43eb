"""Files in and out of a sandbox that is not a directory of this machine: over a socket, or over a command.

`inward` and `outward` are the two directions, `by_socket` and `by_command` the two ways that the bytes of an archive
can take, `script` what the sandbox's own shell does with them. The tree, its excludes, its confinement and its staging
are this side's (`sandport.sync`); the sandbox gives a shell, a tar and a rename.
"""
