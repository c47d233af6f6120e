"""How long a draft is: one file a policy, beside `length` with what a policy is."""
