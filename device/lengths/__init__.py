"""How long a draft is. `length` says what a policy is and has `fixed` and `plan`; the others have a file each."""
