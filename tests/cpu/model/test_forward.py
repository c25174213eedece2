"""The forward pass on the CPU against plain PyTorch over dequantised weights, and against llama.cpp's goldens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hotset
from hotset.quant.formats import FORMATS
from reference import Qwen3MoE, relative_rms
from samples import TinyMoE

NAMES = [f.name for f in FORMATS.values()]
SHIFTS = pytest.mark.parametrize("shift", range(0, len(NAMES), 9))
WIDE = TinyMoE(
    n_layers=3, d_model=256, n_heads=4, n_kv_heads=2, d_head=64, d_expert=256, n_experts=4, n_picks=2, n_vocab=48
)


def mixed_formats(shift: int) -> dict[str, str]:
    """A format for every matrix: the nine experts' of three layers all differ, and take those of the table from `shift` on."""
    matrices = [name for name, shape in WIDE.shapes().items() if len(shape) > 1 and "gate_inp" not in name]
    experts = sorted(name for name in matrices if "_exps" in name)
    others = [name for name in matrices if name not in experts]
    return {name: NAMES[(i + shift) % len(NAMES)] for group in (experts, others) for i, name in enumerate(group)}


def tokens_of(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def check_reference_mode(path, tokens, picks_of, limit: float = 1e-4, dtype=torch.float64) -> int:
    """Logits and picks of reference mode against PyTorch; returns how many positions hang on rounding and were left out."""
    model = hotset.load(path, device="cpu", record_steps=-(-len(tokens) // 8))
    expected = Qwen3MoE(path, dtype)(tokens)
    found = model.logits(tokens, mode="reference")
    n = expected.n_agreed(picks_of(model))
    assert relative_rms(found[:n], expected.logits[:n]) <= limit
    return len(tokens) - n


@SHIFTS
def test_every_layer_may_mix_all_formats(shift, tmp_path, picks_of):
    model = TinyMoE(**(vars(WIDE) | {"formats": mixed_formats(shift)}))
    path = model.write(tmp_path / "mixed.gguf")
    assert check_reference_mode(path, tokens_of(40, WIDE.n_vocab), picks_of, limit=1e-5) == 0


@SHIFTS
def test_fast_mode_is_close_in_every_format(shift, tmp_path):
    path = TinyMoE(**(vars(WIDE) | {"formats": mixed_formats(shift)})).write(tmp_path / "mixed.gguf")
    tokens = tokens_of(40, WIDE.n_vocab)
    found = hotset.load(path, device="cpu").logits(tokens, mode="fast")
    expected = Qwen3MoE(path)(tokens).logits
    errors = [relative_rms(f, e) for f, e in zip(found, expected, strict=True)]
    assert np.median(errors) <= 0.03


@pytest.mark.parametrize(
    "shape",
    [
        {"n_experts": 60, "n_picks": 6, "d_model": 96, "d_expert": 44},
        {"n_experts": 160, "n_picks": 8, "n_heads": 6, "n_kv_heads": 2, "d_head": 40},
        {"n_experts": 384, "n_picks": 1, "n_heads": 3, "n_kv_heads": 3, "d_head": 20},
        {"n_experts": 5, "n_picks": 5, "d_model": 88, "d_expert": 1, "n_kv_heads": 1},
        {"n_experts": 1, "n_picks": 1, "n_vocab": 17, "tied": True},
    ],
    ids=lambda s: f"{s['n_experts']} experts",
)
def test_sizes_need_be_no_powers_of_two(shape, tmp_path, picks_of):
    model = TinyMoE(**shape)
    path = model.write(tmp_path / "odd.gguf")
    assert check_reference_mode(path, tokens_of(30, model.n_vocab), picks_of, limit=1e-5) == 0
    assert np.isfinite(hotset.load(path, device="cpu").logits(tokens_of(30, model.n_vocab), mode="fast")).all()


@pytest.mark.parametrize(
    "extra",
    [
        {"rope.dimension_count": 16},
        {"rope.freq_base": 5e5},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"attention.layer_norm_rms_epsilon": 0.1},
    ],
    ids=lambda e: next(iter(e)),
)
def test_settings_of_the_file_count(extra, tmp_path, picks_of):
    path = TinyMoE(extra=extra).write(tmp_path / "tiny.gguf")
    assert check_reference_mode(path, tokens_of(50, 50), picks_of, limit=1e-5) == 0


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe-q4_k_m", "qwen3moe-q8_0"])
def test_reference_mode_is_llama_cpp_in_float(shared, name, picks_of):
    """The experts of the quantised files come from a run with rounded activations, so PyTorch says which are right there."""
    path = shared / "golden" / "tiny" / f"{name}.gguf"
    golden = np.load(path.with_suffix(".npz"))
    for s in (1, 2):
        tokens = golden[f"tokens_{s}"].tolist()
        logits = golden[f"logits_f32_{s}" if f"logits_f32_{s}" in golden else f"logits_{s}"]
        model = hotset.load(path, device="cpu", record_steps=64)
        assert relative_rms(model.logits(tokens, mode="reference"), logits) <= 2e-5
        if name == "qwen3moe":
            assert np.array_equal(picks_of(model), golden[f"experts_{s}"])
        assert check_reference_mode(path, tokens, picks_of) == 0


@pytest.mark.parametrize("name", ["qwen3moe-q4_k_m", "qwen3moe-q8_0"])
def test_fast_mode_is_near_llama_cpp_with_rounded_activations(shared, name):
    path = shared / "golden" / "tiny" / f"{name}.gguf"
    golden = np.load(path.with_suffix(".npz"))
    model = hotset.load(path, device="cpu")
    for s in (1, 2):
        found = model.logits(golden[f"tokens_{s}"].tolist(), mode="fast")
        errors = [relative_rms(f, e) for f, e in zip(found, golden[f"logits_{s}"], strict=True)]
        assert np.median(errors) < 0.05


@pytest.mark.parametrize("name", ["demo-moe-Q4_K_M", "lab-moe-Q4_K_M"])
def test_real_models_in_reference_mode_are_plain_pytorch(shared, name, picks_of):
    path = shared / "models" / f"{name}.gguf"
    golden = np.load(shared / "golden" / f"{name}.logits.npz")
    left_out = sum(
        check_reference_mode(path, golden[f"tokens_{i}"].tolist(), picks_of, dtype=torch.float32) for i in range(3)
    )
    n = sum(len(golden[f"tokens_{i}"]) for i in range(3))
    assert left_out <= n / 10, f"{left_out} of {n} positions hang on rounding"


def test_the_torch_reference_excuses_other_picks_only_where_they_hang_on_rounding(tmp_path):
    path = TinyMoE().write(tmp_path / "tiny.gguf")
    model = Qwen3MoE(path)
    sound = model([1, 2, 3])
    assert sound.n_agreed(sound.picks[..., ::-1]) == 3
    with pytest.raises(AssertionError, match="position 2 of layer 1 has other picks"):
        sound.n_agreed(changed(sound.picks))
    router = model.weights["blk.1.ffn_gate_inp.weight"]
    router[:] = router[0]  # all experts tie
    tied = model([1, 2, 3])
    assert tied.n_agreed(changed(tied.picks)) == 2


def changed(picks: np.ndarray) -> np.ndarray:
    others = picks.copy()
    others[1, 2] = (others[1, 2] + 1) % 8
    return others
