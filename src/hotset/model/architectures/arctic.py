"""Arctic: a dense network after attention, and experts that read the layer's input, beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("arctic", "Snowflake Arctic")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours"))
    experts = keys.experts(width="feed_forward_length")
    feed = (Branch((Dense(),)), Branch((experts,), norm="ffn_norm_exps", source="layer input"))
    return keys.model(lambda _: LayerRule(attention, feed))
