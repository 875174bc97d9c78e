"""A tiny random Llama GGUF: 259 tokens (bytes), two blocks, written in milliseconds."""

import gguf
import numpy as np

WIDTH, HEADS, FEED, BLOCKS = 32, 2, 64, 2


def write_tiny_llama(path, seed=1, noise=0.0, pooling=None):
    """Write a model with random weights drawn from `seed`.

    `noise` shifts every weight by that share of its standard deviation: such a model is
    near the one of the same seed without noise, and can draft for it. With `pooling` (1 mean,
    3 last) it is an embedding model.
    """
    weights, shift = (np.random.default_rng(s) for s in (seed, seed + 1000))
    writer = gguf.GGUFWriter(str(path), "llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))

    def tensor(name, rows, columns, scale=1.0):
        values = weights.normal(size=(rows, columns)) + noise * shift.normal(size=(rows, columns))
        writer.add_tensor(name, (values * scale / np.sqrt(columns)).astype(np.float32))

    def norm(name):
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH, scale=4.0)
    tensor("output.weight", len(tokens), WIDTH, scale=2.0)
    norm("output_norm.weight")
    for i in range(BLOCKS):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{i}.{name}.weight", WIDTH, WIDTH, scale=2.0)
        tensor(f"blk.{i}.ffn_gate.weight", FEED, WIDTH)
        tensor(f"blk.{i}.ffn_up.weight", FEED, WIDTH)
        tensor(f"blk.{i}.ffn_down.weight", WIDTH, FEED, scale=2.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
