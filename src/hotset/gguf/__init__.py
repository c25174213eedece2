"""Reading and writing GGUF files; needs NumPy only."""

from hotset.gguf.metadata import MISSING, Metadata
from hotset.gguf.reader import GGUFFile, open_gguf
from hotset.gguf.strings import StringArray, string_array
from hotset.gguf.tensors import TensorInfo
from hotset.gguf.types import GGML_TYPES, REMOVED_TYPES, TYPES_BY_NAME, GGMLType
from hotset.gguf.writer import GGUFWriter

__all__ = [
    "GGML_TYPES",
    "MISSING",
    "REMOVED_TYPES",
    "TYPES_BY_NAME",
    "GGMLType",
    "GGUFFile",
    "GGUFWriter",
    "Metadata",
    "StringArray",
    "TensorInfo",
    "open_gguf",
    "string_array",
]
