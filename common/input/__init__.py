"""What a user hands in, before a model sees it: pictures and their tiles, text and its ids, the chat template.

Both ends load a picture and a text by the same code, so that they see the same pixels and ids. Never here: weights.
"""
