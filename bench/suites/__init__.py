"""Pictures, questions and their scores: drawn scenes and the published benchmarks."""
