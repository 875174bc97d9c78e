"""The OpenAI-compatible endpoint: HTTP over the same engine that the terminal chat uses.

Knows nothing of the terminal app; the engine knows nothing of it.
"""
