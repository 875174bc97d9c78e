"""A tiny random BERT GGUF for embeddings: letters and a few words, written in milliseconds."""

import gguf
import numpy as np

WIDTH, HEADS, FEED, BLOCKS, CONTEXT = 32, 2, 64, 2, 64
# WordPiece as GGUF spells it: "▁" begins a word.
WORDS = ["▁the", "▁quick", "▁brown", "▁fox", "▁sea", "▁hello", "▁world"]
LETTERS = [f"{mark}{chr(code)}" for code in range(33, 127) for mark in ("▁", "")]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *LETTERS]


def write_tiny_bert(path, pooling=gguf.PoolingType.MEAN, seed=1):
    """Write a model with random weights drawn from `seed`; `pooling` None names none."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "bert")
    special = [gguf.TokenType.CONTROL] * 5
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(TOKENS)
    writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (len(TOKENS) - 5)])
    writer.add_token_type_count(2)
    for name, value in (("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("eos", 3), ("mask", 4)):
        getattr(writer, f"add_{name}_token_id")(value)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    if isinstance(pooling, str):  # as no model has it
        writer.add_string("bert.pooling_type", pooling)
    elif pooling is not None:
        writer.add_pooling_type(pooling)

    def tensor(name, rows, columns, scale=1.0):
        values = rng.normal(size=(rows, columns)) * scale / np.sqrt(columns)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
        return rows

    def layer(name, rows, columns):
        tensor(name, rows, columns)
        writer.add_tensor(f"{name}.bias", (rng.normal(size=rows) * 0.1).astype(np.float32))

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))

    tensor("token_embd", len(TOKENS), WIDTH, scale=4.0)
    tensor("token_types", 2, WIDTH)
    tensor("position_embd", CONTEXT, WIDTH)
    norm("token_embd_norm")
    for i in range(BLOCKS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            layer(f"blk.{i}.{name}", WIDTH, WIDTH)
        norm(f"blk.{i}.attn_output_norm")
        layer(f"blk.{i}.ffn_up", FEED, WIDTH)
        layer(f"blk.{i}.ffn_down", WIDTH, FEED)
        norm(f"blk.{i}.layer_output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
