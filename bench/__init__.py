"""Measurements, simulated load and training: everything that uses device and edge, and that neither needs.

One room for each thing that is measured; `cli` names the commands, `report` writes what a measurement ends with,
`processes` starts the product's commands. Nothing outside imports from here.
"""
