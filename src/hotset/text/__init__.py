"""Text in and out of a model: tokens, chat templates, and streams of characters. Needs no torch."""

from hotset.text.chat import ChatTemplate, default_template, encode_chat
from hotset.text.messages import prepared_messages
from hotset.text.pre import PRE_TOKENIZERS
from hotset.text.stream import Detokenizer, StopStrings, stop_token_ids
from hotset.text.tokenizer import Tokenizer
from hotset.text.vocabulary import TokenizerWarning

__all__ = [
    "PRE_TOKENIZERS",
    "ChatTemplate",
    "Detokenizer",
    "StopStrings",
    "Tokenizer",
    "TokenizerWarning",
    "default_template",
    "encode_chat",
    "prepared_messages",
    "stop_token_ids",
]
