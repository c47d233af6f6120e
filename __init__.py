"""Device-edge co-inference for vision-language models by speculative decoding."""

import os

# Before gRPC is imported: its core writes log lines of its own to stderr, between an answer and its statistics.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"
