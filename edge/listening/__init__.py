"""A port: binding it, TLS and keys, health, metrics over HTTP, the flags of it. Never here: what is served."""
