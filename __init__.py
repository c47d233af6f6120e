"""Device-edge co-inference for vision-language models by speculative decoding."""

__version__ = "0.1.0"
