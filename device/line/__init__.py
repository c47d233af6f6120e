"""The stream to the edge: opening it, getting it back, the radio that it goes over, verdicts and plans that come in.

Never here: what is drafted, or what a verdict means for the text.
"""
