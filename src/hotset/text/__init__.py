"""Text in and out of a model: tokens, chat templates, and streams of characters. Needs no torch."""

from hotset.text.answer import Answer, AnswerParser, Call, parse_answer
from hotset.text.chat import ChatTemplate, default_template, encode_chat
from hotset.text.feed import Delta
from hotset.text.messages import prepared_messages
from hotset.text.pre import PRE_TOKENIZERS
from hotset.text.stream import Detokenizer, StopStrings, stop_token_ids
from hotset.text.tokenizer import Tokenizer
from hotset.text.vocabulary import TokenizerWarning

__all__ = [
    "PRE_TOKENIZERS",
    "Answer",
    "AnswerParser",
    "Call",
    "ChatTemplate",
    "Delta",
    "Detokenizer",
    "StopStrings",
    "Tokenizer",
    "TokenizerWarning",
    "default_template",
    "encode_chat",
    "parse_answer",
    "prepared_messages",
    "stop_token_ids",
]
