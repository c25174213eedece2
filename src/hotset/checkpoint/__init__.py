"""Hugging Face checkpoints (a folder of safetensors files) shown as the GGUF file that they would become."""

from hotset.checkpoint.file import CheckpointFile, ModelFile, is_checkpoint, open_checkpoint, open_model

__all__ = ["CheckpointFile", "ModelFile", "is_checkpoint", "open_checkpoint", "open_model"]
