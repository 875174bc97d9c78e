"""The terminal app: a thin client of the engine that shows speculation happen."""
