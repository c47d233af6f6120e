"""The embedded pair: how its scenes are drawn, what is asked about them, and how both models are trained."""
