"""The edge's half of every correction mode: one file a mode, one line each in the table of `judge.py`."""
