"""Multi-SPIN's figures and claims, by its model, by the real scheduler and through the real server."""
