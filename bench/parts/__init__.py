"""Single parts against their baselines: drafting, selection, verification, INT8, the wire, start-up."""
