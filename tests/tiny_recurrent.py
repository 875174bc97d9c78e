"""Tiny random models whose state cannot simply be cut: Mamba (recurrent) and LFM2 (hybrid).

They say nothing sensible, but exercise every way of rolling a cache back.
"""

import gguf
import numpy as np

BYTES = [f"<0x{i:02X}>" for i in range(256)]
WIDTH = 32


def _writer(path, arch, layers, seed):
    writer = gguf.GGUFWriter(str(path), arch)
    tokens = ["<unk>", "<s>", "</s>", *BYTES]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([*kinds, *[gguf.TokenType.BYTE] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-5)
    rng = np.random.default_rng(seed)

    def tensor(name, *shape, scale=1.0, values=None):
        if values is None:
            values = rng.normal(scale=scale / np.sqrt(shape[-1]), size=shape)
        writer.add_tensor(name, np.asarray(values, np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH, scale=4.0)
    tensor("output.weight", len(tokens), WIDTH, scale=6.0)
    return writer, tensor


def _finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mamba(path, seed=1, layers=2):
    """A purely recurrent model."""
    writer, tensor = _writer(path, "mamba", layers, seed)
    inner, conv, state, rank = 2 * WIDTH, 4, 16, 2
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    tensor("output_norm.weight", WIDTH, values=np.ones(WIDTH))
    for i in range(layers):
        b = f"blk.{i}."
        tensor(b + "attn_norm.weight", WIDTH, values=np.ones(WIDTH))
        tensor(b + "ssm_in.weight", 2 * inner, WIDTH)
        tensor(b + "ssm_conv1d.weight", inner, conv)
        tensor(b + "ssm_conv1d.bias", inner, values=np.zeros(inner))
        tensor(b + "ssm_x.weight", rank + 2 * state, inner)
        tensor(b + "ssm_dt.weight", inner, rank)
        tensor(b + "ssm_dt.bias", inner, values=np.full(inner, 0.5))
        steps = np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
        tensor(b + "ssm_a", inner, state, values=-0.1 * steps)
        tensor(b + "ssm_d", inner, values=np.ones(inner))
        tensor(b + "ssm_out.weight", WIDTH, inner, scale=2.0)
    _finish(writer)


def write_lfm2(path, seed=1):
    """A hybrid: one block with a short convolution, one with attention."""
    writer, tensor = _writer(path, "lfm2", 2, seed)
    heads, head, ff, conv = 2, 16, 64, 3
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0, heads])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(3 + len(BYTES))
    writer.add_shortconv_l_cache(conv)
    tensor("token_embd_norm.weight", WIDTH, values=np.ones(WIDTH))
    for i in range(2):
        b = f"blk.{i}."
        tensor(b + "attn_norm.weight", WIDTH, values=np.ones(WIDTH))
        tensor(b + "ffn_norm.weight", WIDTH, values=np.ones(WIDTH))
        tensor(b + "ffn_gate.weight", ff, WIDTH)
        tensor(b + "ffn_up.weight", ff, WIDTH)
        tensor(b + "ffn_down.weight", WIDTH, ff, scale=2.0)
        if i == 0:
            tensor(b + "shortconv.conv.weight", WIDTH, conv)
            tensor(b + "shortconv.in_proj.weight", 3 * WIDTH, WIDTH, scale=2.0)
            tensor(b + "shortconv.out_proj.weight", WIDTH, WIDTH, scale=2.0)
        else:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                tensor(b + name + ".weight", WIDTH, WIDTH, scale=2.0)
            for name in ("attn_q_norm", "attn_k_norm"):
                tensor(b + name + ".weight", head, values=np.ones(head))
    _finish(writer)
