"""Measurements: one module per table, figure or comparison, and the `covspec` command."""
