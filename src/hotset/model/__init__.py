"""Models: what they are (config, one file per architecture), their weights, and the forward pass."""

from hotset.model import architectures  # they register themselves
from hotset.model.config import ARCHITECTURES, ModelConfig, model_config

__all__ = ["ARCHITECTURES", "ModelConfig", "architectures", "model_config"]
