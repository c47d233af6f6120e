"""Plans for running sessions: what is estimated, when a plan changes, who solves it, how plans travel."""
