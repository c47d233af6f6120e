"""Limits and versions of the protocol: what may be said at all, whoever says it. Needs no protobuf."""

#: Raised by one with every change that an older peer cannot understand.
PROTOCOL_VERSION = 1
#: Versions that this code can speak.
SUPPORTED_VERSIONS = frozenset({1})
#: Largest gRPC message, bytes: a 20 MiB picture up; one float16 row of any vocabulary down.
MAX_MESSAGE_BYTES = 32 << 20
#: Draft lengths over this are refused before anything is allocated.
MAX_DRAFT_LENGTH = 256
#: Tokens that an edge decodes alone when asked once.
MAX_DECODE_AHEAD = 1024
#: Longest prompt on the wire, in tokens.
MAX_PROMPT_TOKENS = 1 << 20
#: Longest name of a device, and longest reason of a cancel.
MAX_NOTE_BYTES = 128
#: Longest name of a model, which may be a path.
MAX_NAME_BYTES = 512
#: Entries of a draft's row that `topk` sends, as Multi-SPIN does.
TOP_ENTRIES = 1024
#: Tokens that `candidates` draws from p for a rejection, and draws again when none of them is kept.
NUM_CANDIDATES = 16
#: Candidates that a device may refuse before it has to ask for the row.
MAX_REFUSED = 4096
#: More than any version will ever have: a message holds millions of them, and each is looked at.
MAX_FEATURES = 64
#: SNRs on the wire, in steps of half a decibel.
MAX_SNR_HALF_DB = 120
