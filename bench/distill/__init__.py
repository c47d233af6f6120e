"""Distilling a draft from a text model: `covspec train-draft`."""
