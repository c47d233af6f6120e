"""Device-edge co-inference for vision-language models by speculative decoding."""

import os

# Before gRPC is imported: its core writes log lines of its own to stderr, beside the one line that says what is wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.1.0"
