"""A model folder's files as people have them: weights in one file or many, and tokenizers of several ages."""
