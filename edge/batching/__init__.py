"""From a draft to its verdict: admission, queues, one forward pass for many sessions, the judge, KV memory.

Never here: protobuf, sockets, plans.
"""
