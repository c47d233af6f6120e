"""Multi-SPIN's model of a round and its solvers: pure functions of a scenario. Never here: time, threads, sessions."""
