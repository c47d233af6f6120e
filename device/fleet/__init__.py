"""Simulated devices: the real session and link, with scripted drafts, paced time and a modelled radio."""
