"""Chats to prompts: the model's own template, rendered safely, and messages that stay text."""

from __future__ import annotations

from functools import cached_property
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from hotset.errors import InputError
from hotset.text.marks import Marks
from hotset.text.messages import prepared_messages, takes_long_ids, takes_systems, writes_objects, writes_parts
from hotset.text.vocabulary import warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Template

    from hotset.text.sandbox import MeteredEnvironment
    from hotset.text.tokenizer import Tokenizer

MAX_SOURCE = 1 << 18
FILENAME = "<chat template>"


class ChatTemplate:
    """A chat template in Jinja, as model files carry them. It cannot reach Python, and cannot run or grow without end."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._environment, self._template, self._variables = compile_template(source)

    @classmethod
    def for_tokenizer(cls, source: str, tokenizer: Tokenizer) -> ChatTemplate:
        """The template with the tokenizer's begin and end tokens."""
        bos, eos = ("" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
        return cls(source, bos=bos, eos=eos)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt text; `variables` are what this template knows besides, such as `enable_thinking`."""
        given = {
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            with self._environment.metered(given):
                return self._environment.concat(self._pieces(given))
        except Exception as error:
            raise template_error(error) from error

    def reads(self, variable: str) -> bool:
        """Whether the template looks at a variable such as `tools` or `enable_thinking`; what it does not read has no effect."""
        return variable in self._variables

    @cached_property
    def wants_argument_text(self) -> bool:
        """Whether the template writes the arguments of tool calls only where they are JSON text, not objects."""
        return not writes_objects(self)

    @cached_property
    def wants_one_text(self) -> bool:
        """Whether the template writes content only where it is one text, not a list of parts."""
        return not writes_parts(self)

    @cached_property
    def wants_one_system(self) -> bool:
        """Whether the template takes one system message at the beginning and no second one."""
        return not takes_systems(self)

    @cached_property
    def wants_short_ids(self) -> bool:
        """Whether the template takes calls only with ids of nine letters or digits."""
        return not takes_long_ids(self)

    def _pieces(self, given: Mapping[str, Any]) -> list[str]:
        return [self._environment.sliced(piece) for piece in self._template.generate(given)]


def compile_template(source: str) -> tuple[MeteredEnvironment, Template, frozenset[str]]:
    """Return where the template runs, the template, and the variables that it reads."""
    from jinja2 import Template
    from jinja2.meta import find_undeclared_variables

    from hotset.text.meter import Metering
    from hotset.text.sandbox import MeteredEnvironment

    if len(source) > MAX_SOURCE:
        raise InputError(
            f"chat template: has {len(source):,} characters, over the limit of {MAX_SOURCE:,}; use another"
        )
    environment = MeteredEnvironment()
    try:
        with environment.metered(source):
            tree = environment.parse(source)
            variables = frozenset(find_undeclared_variables(tree))
            tree = Metering().visit(tree)
            tree.set_environment(environment)
            code = environment.compile(tree, filename=FILENAME)
            template = Template.from_code(environment, code, environment.make_globals(None))
            return environment, template, variables
    except Exception as error:
        raise template_error(error) from error


def template_error(error: Exception) -> InputError:
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == FILENAME]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    place = f"chat template, line {line}" if line else "chat template"
    reason = "it nests or recurses too deeply" if isinstance(error, RecursionError) else str(error)
    return InputError(f"{place}: {reason or type(error).__name__}; change the messages, or use another template")


def default_template(metadata: Mapping[str, Any]) -> str | None:
    """Return the source of the file's chat template, None (with a warning if it is damaged) where it has none."""
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        warn(f"tokenizer.chat_template is a {type(source).__name__}, not text; the model is used without a template")
        return None
    try:
        source.encode()
    except UnicodeEncodeError:
        warn("tokenizer.chat_template is no valid UTF-8; the model is used without a template")
        return None
    return source


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    parse_content: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the ids of a rendered chat, with exactly one BOS where the model wants one.

    Control tokens that the template writes are parsed; the same spelled out by a user (in messages, tools or variables) is plain
    text, unless `parse_content`. `messages` are in OpenAI's form, and are prepared for the template (`prepared_messages`).
    """
    inputs = {"messages": prepared_messages(template, messages), "tools": tools, **variables}
    marks = Marks(tokenizer.control_texts, inputs, template.source)
    if not parse_content:
        inputs = marks.hide(inputs)
    text = template.render(add_generation_prompt=add_generation_prompt, **inputs)
    ids = tokenizer.encode_marked(text, marks.table)
    missing_bos = tokenizer.add_bos and ids[:1] != [tokenizer.bos_id]
    return [tokenizer.bos_id, *ids] if missing_bos and tokenizer.bos_id is not None else ids
