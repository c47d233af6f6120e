"""Models: what one is to the rest (`model`), how one is found and loaded, and how it runs ragged rows.

`model`, `prompt`, `table` and `zoo` import no torch; the others do. Weights of the embedded pair lie in `scenes/`.
Never here: drafting, verification, sessions.
"""
