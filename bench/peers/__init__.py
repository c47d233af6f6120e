"""Other programs beside ours: the same pair of models, the same prompts, one core for each side, answers compared.

`programs` run in environments of their own and import nothing of covspec; `ours` speaks the same lines about our own
edge and device. `process` starts them, `contest` and `crowds` ask, `figures` says what it came to.
"""
