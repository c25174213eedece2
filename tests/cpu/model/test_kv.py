"""How keys, values and latents are kept: bytes, what is refused, and latents in blocks of int8."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.model.batch import prompt_batch
from hotset.model.host_kv import LayerKV
from hotset.model.kv import FLOAT32, KVTypes
from hotset.model.rules import Attention, LatentAttention

Q8 = KVTypes("q8_0", "q8_0")
LATENT = LatentAttention(3, 0, kv_rank=64, d_nope=32, d_rope=32, d_value=32, rope=None, scale=0.1)


def config(*mixers):
    return SimpleNamespace(name="a model", layers=[SimpleNamespace(mixer=m) for m in mixers])


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (FLOAT32, 4 * (2 * (64 + 96) + 96)),
        (KVTypes(), 2 * (2 * (64 + 96) + 96)),
        (Q8, 34 * (2 * (2 + 3) + 3)),
        (KVTypes("f16", "q8_0"), 2 * 2 * 64 + 2 * 3 * 34 + 2 * 96),
        (KVTypes("q8_0", "f16"), 2 * 2 * 34 + 2 * 2 * 96 + 3 * 34),
    ],
    ids=str,
)
def test_a_position_takes_what_its_keys_values_and_latents_take(types, expected):
    assert types.position_bytes(config(Attention(4, 2, 64, 96, None), None, LATENT)) == expected


def test_heads_off_the_block_are_refused_only_where_blocks_are_wanted():
    odd = config(Attention(4, 2, 64, 40, None))
    KVTypes("q8_0", "f16").check(odd)
    for types in (Q8, KVTypes("f16", "q8_0")):
        with pytest.raises(InputError, match="heads of a multiple of 32 values, and a model has some of 40"):
            types.check(odd)


@pytest.mark.parametrize(("k", "v", "named"), [("f32", "f16", "cache_type_k"), ("f16", "", "cache_type_v")])
def test_unknown_types_are_named(k, v, named):
    with pytest.raises(InputError, match=f"{named} .* is not one of f16, q8_0"):
        KVTypes.parse(k, v)


def test_latents_in_blocks_of_int8_are_near_float_ones():
    rng = np.random.default_rng(0)
    rows, q = rng.standard_normal((9, 96), np.float32), rng.standard_normal((9, 3 * 96), np.float32)
    batch, out = prompt_batch([0] * 9, 0), {}
    for types in (FLOAT32, Q8):
        kv = LayerKV(LATENT, 20, 1, types)
        kv.keys.data[:] = 99
        kv.store(batch, rows)
        out[types] = np.full((9, 3 * 64), np.nan, np.float32)
        nothing, first = np.empty(0, np.float32), np.zeros(9, np.int64)
        kv.attend(q, first, batch.positions, batch.sequences, 0.1, 0.0, nothing, 96, 64, 3, out[types])
    error = np.linalg.norm(out[Q8] - out[FLOAT32]) / np.linalg.norm(out[FLOAT32])
    assert 0 < error < 0.01
