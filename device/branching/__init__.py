"""Drafting on while a verdict travels: branches, how long the wait is, whether they pay."""
