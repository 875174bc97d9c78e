"""The draft/verify engine. Knows nothing of Textual or HTTP.

Start reading at `loop.py`: the whole algorithm is there.
"""
