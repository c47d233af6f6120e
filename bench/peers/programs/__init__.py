"""One program for each peer, run by the Python of the peer's environment with `-m programs.NAME`, in bench/peers.

They import the standard library, the peer, and each other, but nothing of covspec.
"""
