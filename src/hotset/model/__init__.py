"""Models: what they are (config, one file per architecture), their weights, and the forward pass."""

from hotset.model import qwen3moe  # registers itself
from hotset.model.config import ARCHITECTURES, ModelConfig, model_config

__all__ = ["ARCHITECTURES", "ModelConfig", "model_config", "qwen3moe"]
