"""Where models put their reasoning: between two tags before the answer."""

from __future__ import annotations

from dataclasses import dataclass

from hotset.text.feed import Delta, Feed, Steps, starts_with, stream


@dataclass(frozen=True)
class Tags:
    """What opens and closes the reasoning."""

    open: str
    close: str

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt ends in open reasoning, so that the answer begins in it."""
        return prompt.rstrip().endswith(self.open)


# By what a template holds; the first that fits.
TAGS: tuple[tuple[str, Tags], ...] = (
    ("<|channel>thought", Tags("<|channel>thought", "<channel|>")),  # Gemma 4
    ("</think>", Tags("<think>", "</think>")),  # Qwen 3, GLM, MiniMax, DeepSeek and most others
    ("[/THINK]", Tags("[THINK]", "[/THINK]")),  # Mistral
)


def reasoning_tags(template: str) -> Tags | None:
    """Return the tags of the family that a template's text belongs to, None where it knows no reasoning."""
    return next((tags for sign, tags in TAGS if sign in template), None)


def reasoning(feed: Feed, tags: Tags, *, opened: bool) -> Steps[bool]:
    """Yield the reasoning that an answer begins with -> whether there was any, or its tags at least."""
    tag = yield from starts_with(feed, [tags.open])
    if tag is None and not opened:
        return False
    yield from stream(feed, Delta("reasoning", ""), [tags.close], trim=True, trim_end=True)
    return True
