"""Checkpoints of safetensors: what each stored tensor becomes, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hotset.checkpoint import open_model
from hotset.checkpoint.config import Config
from hotset.checkpoint.values import delta_part, from_fp8, pairs_together, to_mxfp4_blocks
from hotset.errors import FileError, UnsupportedError
from hotset.gguf import GGUFFile
from hotset.model import model_config
from hotset.quant.formats import FORMATS

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 3, "num_experts_per_tok": 2, "vocab_size": 10,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "norm_topk_prob": True,
}  # fmt: skip
LAYER = "model.layers.0."


def tensors(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (10, 32), "model.norm.weight": (32,), "lm_head.weight": (10, 32)}
    shapes |= {LAYER + f"self_attn.{x}_proj.weight": (n, 32) for x, n in (("q", 32), ("k", 16), ("v", 16), ("o", 32))}
    shapes |= {LAYER + f"{x}.weight": (32,) for x in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {LAYER + f"self_attn.{x}_norm.weight": (16,) for x in "qk"} | {LAYER + "mlp.gate.weight": (3, 32)}
    for e in range(3):
        shapes |= {LAYER + f"mlp.experts.{e}.{x}_proj.weight": (16, 32) for x in ("gate", "up")}
        shapes[LAYER + f"mlp.experts.{e}.down_proj.weight"] = (32, 16)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write(folder, values, config=CONFIG, shards=1):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(values)
    where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: values[n].contiguous() for n in names if where[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def floats(file, name):
    info = file.tensors[name]
    fmt = FORMATS[info.ggml_type.id]
    blocks = file.data(name).reshape(-1, info.row_bytes // fmt.block_bytes, fmt.block_bytes)
    return fmt.values(fmt.fields_of_blocks(blocks)).reshape(info.shape)


@pytest.mark.parametrize("shards", [1, 3])
def test_names_types_and_bytes_are_those_of_the_gguf_file_it_would_become(tmp_path, shards):
    stored = tensors()
    file = open_model(write(tmp_path / "model", stored, shards=shards))
    assert file.metadata.architecture == "qwen3moe"
    assert file.metadata.arch.int("expert_feed_forward_length") == 16
    assert file.metadata.arch.float("rope.freq_base") == 5000.0
    experts = np.stack([stored[LAYER + f"mlp.experts.{e}.down_proj.weight"].float().numpy() for e in range(3)])
    assert file.tensors["blk.0.ffn_down_exps.weight"].ggml_type.name == "BF16"
    assert np.array_equal(floats(file, "blk.0.ffn_down_exps.weight"), experts)
    assert file.tensors["blk.0.ffn_gate_inp.weight"].ggml_type.name == "F32"
    for gguf, name in (("output_norm", "model.norm"), ("blk.0.attn_q", LAYER + "self_attn.q_proj")):
        assert np.array_equal(floats(file, gguf + ".weight"), stored[name + ".weight"].float().numpy())
    assert all(len(file.data(name)) == info.n_bytes for name, info in file.tensors.items())


def test_the_demo_loads_and_its_words_are_those_of_the_gguf_file(shared):
    file = open_model(shared / "models" / "demo-moe-hf")
    with open_model(shared / "models" / "demo-moe-Q4_K_M.gguf") as gguf:
        assert isinstance(gguf, GGUFFile)
        assert {n: t.shape for n, t in file.tensors.items()} == {n: t.shape for n, t in gguf.tensors.items()}
        for key in ("tokens", "merges", "token_type"):
            assert list(file.metadata[f"tokenizer.ggml.{key}"]) == list(gguf.metadata[f"tokenizer.ggml.{key}"])
        assert file.metadata["tokenizer.ggml.pre"] == gguf.metadata["tokenizer.ggml.pre"]
        assert file.metadata["tokenizer.ggml.eos_token_id"] == gguf.metadata["tokenizer.ggml.eos_token_id"]
        assert "<|im_start|>" in file.metadata["tokenizer.chat_template"]


def test_float8_blocks_are_multiplied_by_their_scales(tmp_path):
    stored = tensors()
    name = LAYER + "self_attn.q_proj.weight"
    values = torch.randn(32, 32).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 4) + 0.5
    stored |= {name: values, name + "_scale_inv": scale}
    config = CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 8]}}
    found = floats(open_model(write(tmp_path / "m", stored, config)), "blk.0.attn_q.weight")
    exact = values.float().numpy() * np.kron(scale.numpy(), np.ones((16, 8)))
    assert np.allclose(found, exact, rtol=2**-8)
    assert from_fp8(values[:30, :30], scale, (16, 8)).shape == (30, 30)


def test_packed_nibbles_become_the_blocks_that_have_their_values():
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    rng = np.random.default_rng(0)
    blocks, scales = rng.integers(0, 256, (5, 3, 16), np.uint8), rng.integers(110, 140, (5, 3), np.uint8)
    packed = to_mxfp4_blocks(torch.from_numpy(blocks), torch.from_numpy(scales)).numpy()
    in_order = np.stack([table[blocks & 15], table[blocks >> 4]], -1).reshape(5, 3, 32)
    exact = in_order * np.exp2(scales.astype(np.float32) - 127)[..., None]
    # A block of GGUF: the scale's exponent, then elements 0-15 in the low nibbles and 16-31 in the high ones.
    found = np.concatenate([table[packed[..., 1:] & 15], table[packed[..., 1:] >> 4]], -1)
    assert np.array_equal(found * np.exp2(packed[..., :1].astype(np.float32) - 127), exact)


def test_halves_of_a_head_come_to_stand_in_pairs():
    config = Config(None, {"num_attention_heads": 2})
    rows = torch.arange(8).reshape(8, 1)
    assert pairs_together("num_attention_heads")(rows, config).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_grouped_delta_heads_are_sorted_by_kind():
    sizes = {
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 1,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 1,
    }
    # Rows per key head: q, k, two values, two gates.
    rows = torch.arange(12).reshape(12, 1)
    assert delta_part("qkv")(rows, Config(None, sizes)).flatten().tolist() == [0, 6, 1, 7, 2, 3, 8, 9]
    assert delta_part("z")(rows, Config(None, sizes)).flatten().tolist() == [4, 5, 10, 11]


def test_what_is_wrong_is_named(tmp_path):
    stored = tensors()
    extra = stored | {LAYER + "mlp.strange.weight": torch.zeros(2), "model.other": torch.zeros(2)}
    with pytest.raises(UnsupportedError, match=r"mlp\.strange\.weight, model\.other"):
        open_model(write(tmp_path / "a", extra))
    with pytest.raises(FileError, match="not each of 0 to 1 once"):
        open_model(write(tmp_path / "b", {n: t for n, t in stored.items() if "experts.1." not in n}))
    with pytest.raises(UnsupportedError, match="llava"):
        open_model(write(tmp_path / "c", stored, CONFIG | {"model_type": "llava"}))
    with pytest.raises(FileError, match="scoring_func: is 'cosine'"):
        open_model(write(tmp_path / "g", stored, CONFIG | {"scoring_func": "cosine"}))
    with pytest.raises(FileError, match="num_hidden_layers"):
        open_model(write(tmp_path / "d", stored, {k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}))
    folder = write(tmp_path / "e", stored, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileError, match="model-00002-of-00002"):
        open_model(folder)
    folder = write(tmp_path / "f", stored)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(FileError, match="damaged"):
        open_model(folder)
    (folder / "config.json").write_text("[")
    with pytest.raises(FileError, match="JSON"):
        open_model(folder)


QUERY = LAYER + "self_attn.q_proj.weight"
FP8 = CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 8]}}


@pytest.mark.parametrize(
    ("scale", "told"),
    [
        (None, "scales of .*q_proj.weight are missing"),
        (torch.ones(2, 3), r"has the shape \[2, 3\], .* needs \[2, 4\]"),
        (torch.ones(32, 32), r"has the shape \[32, 32\]"),
        (torch.ones(2, 4, dtype=torch.uint8), "stored as U8, not F32"),
    ],
    ids=["missing", "too few", "too many", "no floats"],
)
def test_scales_that_do_not_fit_are_named(tmp_path, scale, told):
    stored = tensors() | {QUERY: torch.randn(32, 32).to(torch.float8_e4m3fn)}
    stored |= {} if scale is None else {QUERY + "_scale_inv": scale}
    with pytest.raises(FileError, match=r"q_proj\.weight_scale_inv: .*" + told):
        open_model(write(tmp_path / "m", stored, FP8))


def test_scales_without_what_they_scale_are_named(tmp_path):
    stored = tensors() | {QUERY + "_scale_inv": torch.ones(2, 4)}
    stored.pop(QUERY)
    with pytest.raises(UnsupportedError, match=r"q_proj\.weight_scale_inv"):
        open_model(write(tmp_path / "m", stored, FP8))


@pytest.mark.parametrize("size", [[128], [0, 8], ["a", 8], 128])
def test_a_block_size_that_is_none_is_named(tmp_path, size):
    config = CONFIG | {"quantization_config": {"weight_block_size": size}}
    stored = tensors() | {QUERY: torch.randn(32, 32).to(torch.float8_e4m3fn), QUERY + "_scale_inv": torch.ones(2, 4)}
    with pytest.raises(FileError, match="weight_block_size"):
        open_model(write(tmp_path / "m", stored, config))


def test_experts_of_different_number_formats_are_an_error(tmp_path):
    name = LAYER + "mlp.experts.1.up_proj.weight"
    stored = tensors()
    stored[name] = stored[name].float()
    with pytest.raises(FileError, match=r"blk\.0\.ffn_up_exps.*: its experts differ in number format: BF16, F32"):
        open_model(write(tmp_path / "m", stored))


def test_index_and_files_must_agree(tmp_path):
    folder = write(tmp_path / "m", tensors(), shards=2)
    index = folder / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(where.values()))
    name = min(n for n, file in where.items() if file == first)
    for changed in (
        {**where, name: second},
        {**where, "model.lost": first},
        {n: f for n, f in where.items() if n != name},
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(
            FileError, match=r"index\.json: does not say where these tensors are: (model\.lost|lm_head)"
        ):
            open_model(folder)
    for damaged in ('{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{}", "[" * 100_000, "\xff"):
        index.write_text(damaged, "latin-1")
        with pytest.raises(FileError, match="weight_map"):
            open_model(folder)


@pytest.mark.parametrize(
    "header",
    [
        (2**60).to_bytes(8, "little") + b"{}",
        b"",
        b"\x02\0\0\0\0\0\0\0[]",
        {"a": [0, 8], "b": [4, 12]},
        {"a": [0, 8], "b": [8, 2**63]},
        {"a": [8, 0]},
    ],
    ids=["2^60", "empty", "no object", "overlap", "beyond the end", "backwards"],
)
def test_damaged_files_are_named(tmp_path, header):
    folder = write(tmp_path / "m", tensors())
    if isinstance(header, dict):
        entries = {n: {"dtype": "F32", "shape": [2], "data_offsets": offsets} for n, offsets in header.items()}
        text = json.dumps(entries).encode()
        header = len(text).to_bytes(8, "little") + text + bytes(12)
    (folder / "model-00001-of-00001.safetensors").write_bytes(header)
    with pytest.raises(FileError, match=r"model-00001-of-00001\.safetensors: file: .*damaged"):
        open_model(folder)


@pytest.mark.parametrize(
    ("more", "magnitude"),
    [
        ({}, 1.1386),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1),
        ({"attention_factor": None}, 1.1386),
    ],
    ids=str,
)
def test_yarn_has_the_magnitude_that_the_config_gives(tmp_path, more, magnitude):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, **more}
    file = open_model(write(tmp_path / "m", tensors(), CONFIG | {"rope_scaling": scaling}))
    rope = model_config(file.metadata).rope
    assert (rope.factor, rope.yarn.n_ctx_original) == (4, 16)
    assert rope.magnitude == pytest.approx(magnitude, abs=5e-5)


@pytest.mark.parametrize("factor", [None, 0, -1.0, "4", [4.0], True])
def test_a_stretch_without_a_factor_is_named(tmp_path, factor):
    config = CONFIG | {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    with pytest.raises(FileError, match=r"rope_scaling\.factor"):
        open_model(write(tmp_path / "m", tensors(), config))
