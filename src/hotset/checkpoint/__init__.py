"""Hugging Face checkpoints (a folder of safetensors files) shown as the GGUF file that they would become."""

from hotset.checkpoint.opening import is_checkpoint, open_model

__all__ = ["is_checkpoint", "open_model"]
