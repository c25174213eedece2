"""Other layouts of the same model give the same logits: experts one by one or fused, fused attention, and a dense model as one expert."""

from __future__ import annotations

import numpy as np
import pytest

import hotset
from hotset.errors import FileError, UnsupportedError
from hotset.gguf import GGUFWriter, open_gguf
from hotset.model import model_config
from hotset.model.experts import expert_blocks, expert_layouts
from hotset.model.tensors import Tensors
from hotset.plan.traffic import traffic
from samples import TinyMoE

TOKENS = list(range(3, 15))
TINY = TinyMoE(formats={f"blk.{i}.ffn_{role}_exps.weight": "Q8_0" for i in range(2) for role in ("gate", "up")})


def rewritten(path, to, change, architecture="qwen3moe", leave_out=(), extra=None):
    """Write a file's tensors as `change(name, values)` has them: {name: (bytes or array, type, shape)}."""
    with open_gguf(path) as file:
        writer = GGUFWriter(to, architecture)
        for key in file.metadata.arch:
            if key not in leave_out:
                writer.metadata(f"{architecture}.{key}", file.metadata.arch[key])
        for key, value in (extra or {}).items():
            writer.metadata(f"{architecture}.{key}", value)
        for info in file.tensors.values():
            for name, (data, shape) in change(info.name, file.data(info.name), info.shape).items():
                writer.tensor(name, np.ascontiguousarray(data).reshape(-1), info.ggml_type.name, shape)
        writer.write()
    return to


def logits(path, mode):
    return hotset.load(path, device="cpu").logits(TOKENS, mode=mode)


def same_bits(a, b) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture
def tiny(tmp_path):
    return TINY.write(tmp_path / "tiny.gguf")


def one_by_one(name, data, shape):
    if "_exps" not in name:
        return {name: (data, shape)}
    experts = data.reshape(shape[0], -1)
    return {name.replace("_exps.weight", f".{e}.weight"): (experts[e], shape[1:]) for e in range(shape[0])}


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_files_with_one_tensor_per_expert(tiny, tmp_path, mode):
    old = rewritten(tiny, tmp_path / "old.gguf", one_by_one)
    assert same_bits(logits(old, mode), logits(tiny, mode))


def test_a_missing_expert_is_named(tiny, tmp_path):
    def without_one(name, data, shape):
        return {n: v for n, v in one_by_one(name, data, shape).items() if n != "blk.1.ffn_up.3.weight"}

    old = rewritten(tiny, tmp_path / "old.gguf", without_one)
    with pytest.raises(FileError, match=r"blk\.1\.ffn_up\.3\.weight: this tensor is missing"):
        hotset.load(old, device="cpu")


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_gate_and_up_in_one_tensor(tiny, tmp_path, mode):
    with open_gguf(tiny) as file:
        up = {name: np.array(file.data(name)) for name in file.tensors if "ffn_up_exps" in name}

    def fused(name, data, shape):
        if "ffn_up_exps" in name:
            return {}
        if "ffn_gate_exps" not in name:
            return {name: (data, shape)}
        e, rows, cols = shape
        both = np.stack([data.reshape(e, -1), up[name.replace("gate", "up")].reshape(e, -1)], 1)
        return {name.replace("gate", "gate_up"): (both, (e, 2 * rows, cols))}

    assert same_bits(logits(rewritten(tiny, tmp_path / "fused.gguf", fused), mode), logits(tiny, mode))


def test_q_k_and_v_in_one_tensor(tiny, tmp_path):
    with open_gguf(tiny) as file:
        parts = {name: np.array(file.data(name)) for name in file.tensors if name.endswith(("_k.weight", "_v.weight"))}

    def fused(name, data, shape):
        if name.endswith(("_k.weight", "_v.weight")):
            return {}
        if not name.endswith("attn_q.weight"):
            return {name: (data, shape)}
        pieces = [data.reshape(-1), *(parts[name.replace("_q.", f"_{x}.")].reshape(-1) for x in "kv")]
        rows = shape[0] + 2 * TINY.n_kv_heads * TINY.d_head
        return {name.replace("attn_q", "attn_qkv"): (np.concatenate(pieces), (rows, shape[1]))}

    other = rewritten(tiny, tmp_path / "fused.gguf", fused)
    assert same_bits(logits(other, "reference"), logits(tiny, "reference"))


def dense_twin(tmp_path):
    """A model of a single expert, and the same as a dense one."""
    single = TinyMoE(n_experts=1, n_picks=1).write(tmp_path / "single.gguf")

    def dense(name, data, shape):
        if "ffn_gate_inp" in name:
            return {}
        return {name.replace("_exps", ""): (data, shape[-2:] if "_exps" in name else shape)}

    keys = ("expert_count", "expert_used_count", "expert_feed_forward_length")
    return single, rewritten(single, tmp_path / "dense.gguf", dense, "qwen3", leave_out=keys)


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_a_dense_model_is_one_with_a_single_expert(tmp_path, mode):
    single, dense = dense_twin(tmp_path)
    model = hotset.load(dense, device="cpu")
    np.testing.assert_allclose(model.logits(TOKENS, mode=mode), logits(single, mode), rtol=1e-4, atol=1e-4)
    stats = model.stats()
    assert (stats.hits, stats.misses, stats.layers) == (0, 0, ())
    assert (stats.active, stats.reason) == (False, "the model has no experts")


def memory_of(path):
    """Bytes of dense tensors and of experts, as plan and engine count them, and the bytes of the bank."""
    with open_gguf(path) as file:
        config = model_config(file.metadata)
        found = traffic(file, config, expert_layouts(Tensors(file), config))
    engine = hotset.load(path, device="cpu")
    return found, engine.memory, engine.runner.model.bank.n_bytes


NEXTN = "blk.2.nextn.eh_proj.weight"


@pytest.mark.parametrize("kept", ["all", "part", "none"])
def test_blocks_that_predict_further_tokens_are_skipped(tiny, tmp_path, kept):
    def with_one_more(name, data, shape):
        copies = {name: (data, shape)}
        if kept == "all" and name.startswith("blk.1."):
            copies |= {name.replace("blk.1.", "blk.2."): (data, shape)}
        if kept != "none" and name == "blk.1.attn_norm.weight":
            copies["blk.2.nextn.enorm.weight"] = (data, shape)
        return copies

    keys = {"block_count": 3, "nextn_predict_layers": 1}
    other = rewritten(tiny, tmp_path / "more.gguf", with_one_more, leave_out=("block_count",), extra=keys)
    assert same_bits(logits(other, "fast"), logits(tiny, "fast"))
    assert memory_of(other) == memory_of(tiny)


def test_tensors_for_further_tokens_that_no_key_speaks_of_are_left_with_a_warning(tiny, tmp_path):
    def with_strays(name, data, shape):
        return {name: (data, shape)} | ({NEXTN: (data, shape)} if name == "output_norm.weight" else {})

    other = rewritten(tiny, tmp_path / "stray.gguf", with_strays)
    with pytest.warns(UserWarning, match=r"nextn_predict_layers is 0.*blk\.2\.nextn\.eh_proj\.weight"):
        found = logits(other, "fast")
    assert same_bits(found, logits(tiny, "fast"))


def test_layers_may_differ_in_their_layout(tiny, tmp_path):
    def first_layer_alone(name, data, shape):
        return one_by_one(name, data, shape) if name.startswith("blk.0.") else {name: (data, shape)}

    def one_role_alone(name, data, shape):
        return one_by_one(name, data, shape) if "ffn_down" in name else {name: (data, shape)}

    for change in (first_layer_alone, one_role_alone):
        assert same_bits(logits(rewritten(tiny, tmp_path / "mixed.gguf", change), "fast"), logits(tiny, "fast"))


def test_gate_stands_before_up_in_one_tensor(tmp_path):
    fused = {"blk.0.ffn_gate_up_exps.weight": np.repeat(np.float32([1, 2]), 32 * 64).reshape(1, 64, 64).repeat(8, 0)}
    path = tmp_path / "fused.gguf"
    writer = GGUFWriter(path, "qwen3moe")
    for key, value in TinyMoE(n_layers=1).metadata().items():
        writer.metadata(f"qwen3moe.{key}", value)
    for name, values in fused.items():
        writer.tensor(name, values)
    writer.write()
    with open_gguf(path) as file:
        config = model_config(file.metadata)
        gate, up = (expert_blocks(file, config, 0, role).view(np.float32) for role in ("gate", "up"))
    assert (gate.size, set(gate.tolist()), up.size, set(up.tolist())) == (8 * 32 * 64, {1.0}, 8 * 32 * 64, {2.0})


def test_all_tensors_that_no_part_of_a_model_takes_are_named(tiny, tmp_path):
    def with_others(name, data, shape):
        return {name: (data, shape)} | (
            {f"odd.{i}.weight": (data, shape) for i in range(12)} if name == "output_norm.weight" else {}
        )

    other = rewritten(tiny, tmp_path / "odd.gguf", with_others)
    with pytest.raises(UnsupportedError, match=r"odd\.0\.weight.*odd\.11\.weight.*odd\.9\.weight"):
        hotset.load(other, device="cpu")


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_scales_beside_matrices_multiply_their_products(tiny, tmp_path, mode):
    def scaled(name, data, shape):
        copies = {name: (data, shape)}
        if name in ("blk.0.attn_v.weight", "blk.1.attn_output.weight", "output.weight"):
            copies[name.replace(".weight", ".scale")] = (np.array([2.0], np.float32), (1,))
            copies[name.replace(".weight", ".input_scale")] = (np.array([3.0], np.float32), (1,))
            return copies | {name: (data.view(np.float32) * np.float32(0.5), shape)}
        return copies

    other = rewritten(tiny, tmp_path / "scaled.gguf", scaled)
    np.testing.assert_allclose(logits(other, mode), logits(tiny, mode), rtol=1e-4, atol=1e-4)
