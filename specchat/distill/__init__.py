"""A draft for any model: text sampled from a target, and a small Llama model trained on it.

`collect.py` lets the target write (through the engine, many sequences a call) and keeps what
it nearly said; `data.py` stores that; `model.py`, `loss.py` and `train.py` are PyTorch;
`write.py` makes the GGUF; `evaluate.py` measures it with the engine; `run.py` is the whole.
Only the three PyTorch files import it, and nothing else imports those before they are needed.
"""
