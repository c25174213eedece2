"""Quantisers: the simple ones against the gguf package bit for bit, Q4_K and Q6_K by their error against ggml's own."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from hotset.errors import InputError
from hotset.gguf import open_gguf
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout
from hotset.quant.quantise import QUANTISERS, quantise
from samples import BY_NAME

SEARCHED = ("Q4_K", "Q6_K")
SIMPLE = [name for name in QUANTISERS if name not in SEARCHED]


def dequantised(name: str, blocks: np.ndarray, cols: int) -> np.ndarray:
    layout = MatrixLayout(BY_NAME[name], len(blocks), cols)
    return layout.dequantize(layout.from_blocks(blocks)).astype(np.float64)


def error(name: str, x: np.ndarray, blocks: np.ndarray) -> float:
    """Relative RMS."""
    off = dequantised(name, blocks, x.shape[1]) - x
    return float(np.sqrt((off**2).sum() / (x.astype(np.float64) ** 2).sum()))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 300.0])
def test_simple_formats_have_the_bits_of_the_gguf_package(name, scale):
    x = np.random.default_rng(0).standard_normal((40, 512), np.float32) * np.float32(scale)
    x[3, :256], x[4, 32:64], x[5, :32] = 0, 1.5 * scale, -x[5, 0]
    expected = gguf.quantize(x, gguf.GGMLQuantizationType[name])
    assert np.array_equal(quantise(name, x), np.ascontiguousarray(expected).view(np.uint8).reshape(40, -1))


def ggml_quantised(name: str, x: np.ndarray) -> np.ndarray:
    """As llama-quantize does it, without an importance matrix."""
    libggml = pytest.importorskip("libggml")
    library = ctypes.CDLL(str(Path(libggml.__file__).parent / "lib64" / "libggml-base.so"))
    call = library.ggml_quantize_chunk
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    call.restype = ctypes.c_size_t
    fmt = BY_NAME[name]
    out = np.zeros((len(x), x.shape[1] // fmt.block * fmt.block_bytes), np.uint8)
    assert call(fmt.ggml_type, x.ctypes.data, out.ctypes.data, 0, *x.shape, None) == out.size
    return out


WEIGHTS = {
    "normal": lambda rng: rng.standard_normal((32, 1024)),
    "long tails": lambda rng: rng.standard_t(4, (32, 1024)) * 0.02,
    "uniform": lambda rng: rng.random((32, 1024)),
    "all positive": lambda rng: rng.random((32, 1024)) + 3,
}


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_searched_scales_are_as_good_as_those_of_ggml(name, kind):
    x = WEIGHTS[kind](np.random.default_rng(1)).astype(np.float32)
    assert error(name, x, quantise(name, x)) <= 1.002 * error(name, x, ggml_quantised(name, x))


def bf16_weights(path: Path, name: str) -> np.ndarray:
    """One tensor of a safetensors file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    info = json.loads(raw[8:start])[name]
    first, end = info["data_offsets"]
    bits = np.frombuffer(raw[start + first : start + end], "<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(info["shape"])


@pytest.mark.parametrize(("ours", "theirs"), [("attn_q", "q_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")])
def test_trained_weights_lose_no_more_than_in_a_file_of_llama_cpp(ours, theirs, shared):
    file = open_gguf(shared / "models" / "demo-moe-Q4_K_M.gguf")
    source = shared / "models" / "demo-moe-hf" / "model.safetensors"
    for layer in range(3):
        tensor = f"blk.{layer}.{ours}.weight"
        name = file.tensors[tensor].ggml_type.name
        x = bf16_weights(source, f"model.layers.{layer}.self_attn.{theirs}.weight")
        blocks = np.asarray(file.data(tensor)).reshape(len(x), -1)
        assert error(name, x, quantise(name, x)) <= error(name, x, blocks)


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize("kind", ["zeros", "one outlier", "constant", "negative constant", "tiny", "steps"])
def test_odd_blocks_come_back(name, kind):
    x = np.zeros((2, 512), np.float32)
    if kind == "one outlier":
        x[0, 300] = -7
    elif kind == "tiny":
        x[:] = np.random.default_rng(0).standard_normal(x.shape) * 1e-4
    elif kind == "steps":
        x[:] = np.arange(512) // 32 - 3
    elif kind != "zeros":
        x[:] = -0.75 if "negative" in kind else 0.75
    back = dequantised(name, quantise(name, x), 512)
    assert np.isfinite(back).all()
    # Against the largest number that shares a scale: MXFP4's are as far apart as 4 and 6.
    blocks = np.abs(x).max() if name[-1] == "K" else np.abs(x).reshape(2, -1, 32).max(-1).repeat(32, 1)
    assert (np.abs(back - x) <= np.maximum(0.25 * blocks, 2.0**-24)).all()


def test_what_cannot_be_written_is_named():
    x = np.zeros((2, 96), np.float32)
    with pytest.raises(InputError, match=r"'IQ2_XS'.*Q4_0.*Q6_K"):
        quantise("IQ2_XS", x)
    with pytest.raises(InputError, match=r"96 columns .* Q4_K's block of 256"):
        quantise("Q4_K", x)
    x[1, 7] = np.nan
    with pytest.raises(InputError, match=r"NaN or infinity.*Q8_0"):
        quantise("Q8_0", x)
    assert np.isnan(dequantised("BF16", quantise("BF16", x), 96)[1, 7])


def test_every_quantiser_is_of_a_format_of_the_table():
    assert set(QUANTISERS) <= {f.name for f in FORMATS.values()}
