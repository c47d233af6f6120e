"""Proposing tokens: the draft model's row, the block being drafted, the gate that ends it, the correction.

Never here: the network.
"""
