"""llama.cpp through its C API: the only package that touches ctypes.

Owns weights, context, batch, tokenizer and grammar of one GGUF. Every return code is
checked; llama.cpp's log goes to a file, never to the terminal.
"""

from specchat.engine.llama.backend import default_threads, may_use_gpu, quantize
from specchat.engine.llama.embedding import EmbeddingModel
from specchat.engine.llama.grammar import Grammar
from specchat.engine.llama.model import LlamaCache, LlamaModel
from specchat.engine.llama.options import ModelOptions
from specchat.engine.llama.tokenizer import Tokenizer

__all__ = [
    "EmbeddingModel",
    "Grammar",
    "LlamaCache",
    "LlamaModel",
    "ModelOptions",
    "Tokenizer",
    "default_threads",
    "may_use_gpu",
    "quantize",
]
