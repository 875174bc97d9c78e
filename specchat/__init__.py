"""specchat: terminal chat over in-process speculative decoding of GGUF models."""

__version__ = "0.1.0"
