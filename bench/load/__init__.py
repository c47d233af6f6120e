"""`covspec loadtest`: many simulated devices against a real edge; reports and long runs."""
