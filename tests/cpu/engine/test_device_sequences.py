"""Sequences on the GPU over a device that only remembers: whatever runs ahead, comes and goes, each draws what it draws alone."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripted import script

torch = pytest.importorskip("torch")

from hotset.config import SamplingParams  # noqa: E402
from hotset.engine.device_sequences import DeviceSequences  # noqa: E402
from hotset.engine.engine import reusable  # noqa: E402
from hotset.engine.runner import Drawing  # noqa: E402
from hotset.engine.sampling import sample  # noqa: E402
from hotset.errors import HotsetError  # noqa: E402
from hotset.kernels.sampler import ENDED, NO_TOKEN, RUNNING  # noqa: E402
from hotset.kernels.token_mask import pack, unpack  # noqa: E402

N_CTX, N_VOCAB, CHUNK, END = 24, 400, 4, 7
FAILS = 666


def next_token(held: list[int]) -> int:
    """What the model draws; every so often an end."""
    token = script(held, 0, N_VOCAB)
    return END if token % 11 == 0 else token


class FakeKV:
    """Tokens in place of keys, and in place of states the tokens that they have seen."""

    def __init__(self, n_seqs: int, n_ctx: int) -> None:
        self.k = torch.full((n_seqs, n_ctx), -1)
        self.seen: list[list[int]] = [[] for _ in range(n_seqs)]
        self.n_prompt = [0] * n_seqs

    def see(self, seq: int, position: int, token: int) -> None:
        if position == 0:
            self.seen[seq] = []
        assert len(self.seen[seq]) == position
        self.seen[seq].append(token)
        self.k[seq, position] = token

    def held(self, seq: int, n: int) -> list[int]:
        assert self.seen[seq] == self.k[seq, :n].tolist()
        return list(self.seen[seq])

    def copy(self, source, target, n) -> None:
        self.k[target, :n] = self.k[source, :n].clone()

    def state(self, seq):
        return list(self.seen[seq])

    def set_state(self, seq, state) -> None:
        self.seen[seq] = list(state)


class FreeKV(FakeKV):
    """Without states any beginning will do."""

    def see(self, seq: int, position: int, token: int) -> None:
        self.k[seq, position] = token

    def held(self, seq: int, n: int) -> list[int]:
        return self.k[seq, :n].tolist()


class FakeRows:
    def __init__(self, m: int, n_seqs: int) -> None:
        self.mask, self.token, self.position = [0] * m, [0] * m, [0] * m
        self.begins = [False] * m
        self.seq = [i % n_seqs for i in range(m)]

    def __len__(self) -> int:
        return len(self.mask)


class FakeSeat:
    """Rows that read and write the tokens kept in place of keys; a step is computed when it starts and read later."""

    def __init__(self, m: int, kv, n_seqs: int) -> None:
        self.rows = FakeRows(m, n_seqs)
        self.ops = SimpleNamespace(kv=kv)
        self.drawing = {}
        self.masks = {}
        self.sampler = SimpleNamespace(set_mask=self.masks.__setitem__)
        self._flight = deque()
        self.most_pending = 0

    def place(self, row, tokens, params, seed, end_ids, seq, *, begins=True) -> None:
        self.rows.seq[row] = seq
        self.drawing[seq] = (seed, set(end_ids))
        self.masks[seq] = None
        self.sit(row, tokens[-1], len(tokens) - 1, begins=begins)

    def sit(self, row, token, position, *, begins) -> None:
        self.rows.begins[row] = begins
        self.rows.token[row], self.rows.position[row], self.rows.mask[row] = token, position, 1

    def clear(self, row) -> None:
        self.rows.mask[row] = 0

    def draw(self, _logits) -> None:
        self._draw()

    def step(self) -> None:
        self.compute()
        self._draw()

    def compute(self):
        logits = torch.zeros(len(self.rows), N_VOCAB)
        for r in range(len(self.rows)):
            if self.rows.mask[r]:
                self.ops.kv.see(self.rows.seq[r], self.rows.position[r], self.rows.token[r])
                # The expert cache is told of every answer's first step, and of no other.
                assert self.rows.begins[r] == (self.rows.position[r] == self.ops.kv.n_prompt[self.rows.seq[r]])
                logits[r] = logits_of(self._held(r))
        return logits

    def _held(self, r) -> list[int]:
        return self.ops.kv.held(self.rows.seq[r], self.rows.position[r] + 1)

    def _draw(self) -> None:
        found = []
        for r in range(len(self.rows)):
            seed, ends = self.drawing.get(self.rows.seq[r], (0, set()))
            token, state = self.rows.token[r], RUNNING
            if self.rows.mask[r] and seed == FAILS:
                state, self.rows.mask[r] = NO_TOKEN, 0
            elif self.rows.mask[r]:
                token = next_token(self._held(r))
                words = self.masks.get(self.rows.seq[r])
                if words is not None:
                    token = int(np.flatnonzero(unpack(words, N_VOCAB))[0])
                state = ENDED if token in ends else RUNNING
                self.rows.token[r], self.rows.position[r] = token, self.rows.position[r] + 1
                self.rows.mask[r] = int(state == RUNNING)
                self.rows.begins[r] = False
            found.append((token, state))
        self._flight.append(found)
        self.most_pending = max(self.most_pending, len(self._flight))

    def read(self):
        return self._flight.popleft()

    def discard(self) -> None:
        self._flight.clear()


def logits_of(held: list[int]):
    logits = torch.zeros(N_VOCAB)
    logits[next_token(held)] = 100
    return logits


class FakeRunner:
    n_ctx = N_CTX
    chunk = CHUNK
    chunks = None

    def __init__(self, *, has_states: bool = False) -> None:
        self.has_states = has_states
        self.unused = 0
        self.rows = 0

    def kv(self, n_ctx, _mode, n_seqs):
        return (FakeKV if self.has_states else FreeKV)(n_seqs, n_ctx)

    def seat(self, m, kv, n_seqs) -> FakeSeat:
        return FakeSeat(m, kv, n_seqs)

    def feed_chunk(self, ops, seq, tokens, start, n_prompt):
        for i, token in enumerate(tokens):
            ops.kv.see(seq, start + i, token)
        n = start + len(tokens)
        ops.kv.n_prompt[seq] = n_prompt
        return torch.stack([logits_of(ops.kv.held(seq, n))]) if n == n_prompt else None

    def step(self, seat, n_rows) -> None:
        self.rows += n_rows
        seat.step()

    def compute(self, seat, n_rows):
        return seat.compute()[:n_rows].numpy()

    def note_unused(self, steps, *, idle) -> None:
        self.unused += steps


def alone(prompt: list[int], n: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) - len(prompt) < n and len(tokens) < N_CTX:
        tokens.append(next_token(tokens))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


def drawing(seed: int, max_tokens: int | None = None, **more) -> Drawing:
    return Drawing(SamplingParams(max_tokens=max_tokens, temperature=0), seed, frozenset({END}), **more)


def feed(q: DeviceSequences, seq: int, prompt: list[int], how: Drawing, source: int | None = None) -> None:
    """Take over what there is of the prompt, from another sequence if asked, and feed the rest."""
    if source is None:
        at = q.keep(seq, reusable(q.tokens[seq], prompt))
    else:
        at = q.copy(source, seq, reusable(q.tokens[source], prompt))
    assert q.tokens[seq] == prompt[:at]
    q.start(seq, how)
    while at < len(prompt):
        q.feed(seq, prompt[at : at + CHUNK], len(prompt))
        at += CHUNK


@pytest.mark.parametrize("has_states", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sequences_that_come_and_go_draw_what_they_draw_alone(has_states, data):
    n_seqs = data.draw(st.integers(1, 8))
    runner = FakeRunner(has_states=has_states)
    q = DeviceSequences(runner, n_seqs)
    running: dict[int, tuple[list[int], list[int]]] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        idle = [s for s in range(n_seqs) if s not in running]
        if idle and data.draw(st.booleans()):
            seq = data.draw(st.sampled_from(idle))
            prompt = [data.draw(st.integers(300, 302)) for _ in range(data.draw(st.integers(1, 12)))]
            limit = data.draw(st.integers(1, 30))
            others = [s for s in range(n_seqs) if s != seq]
            source = data.draw(st.sampled_from(others)) if others and data.draw(st.booleans()) else None
            feed(q, seq, prompt, drawing(1, limit, wants_logits=data.draw(st.integers(0, 5)) == 0), source)
            running[seq] = (prompt, alone(prompt, min(limit, N_CTX - len(prompt))))
        if running:
            seqs = sorted(running)
            for seq, drawn in zip(seqs, q.step(seqs), strict=True):
                prompt, expected = running[seq]
                n = len(q.tokens[seq]) - len(prompt)
                assert drawn.token == expected[n - 1]
                assert drawn.is_end == (drawn.token == END)
                assert q.tokens[seq] == prompt + expected[:n]
                if n == len(expected):
                    del running[seq]
        if running and data.draw(st.integers(0, 6)) == 0:  # a client leaves
            del running[data.draw(st.sampled_from(sorted(running)))]
    assert all(seat.most_pending <= 2 for seat in q.seats.values())


def test_a_step_runs_ahead_of_the_host_and_no_further_than_asked():
    runner = FakeRunner()
    q = DeviceSequences(runner, 1)
    feed(q, 0, [300, 301], drawing(1, 5))
    tokens = [q.step([0])[0].token]
    assert runner.rows == 1  # the first came with the prompt, the second is under way
    expected = alone([300, 301], 5)
    tokens += [q.step([0])[0].token for _ in range(len(expected) - 1)]
    assert tokens == expected
    assert runner.rows == len(expected) - 1
    assert runner.unused == 0


def test_a_copied_beginning_is_that_of_the_other():
    q = DeviceSequences(FakeRunner(), 2)
    feed(q, 0, [300, 301, 302], drawing(1))
    q.step([0])
    held = list(q.tokens[0])
    assert q.copy(0, 1, 3) == 3
    feed(q, 1, [300, 301, 302, 305], drawing(2))
    assert q.step([1])[0].token == alone([300, 301, 302, 305], 1)[0]
    assert q.tokens[0] == held
    assert q.copy(1, 0, 99) == 4  # the last drawn one has no keys yet


def test_after_a_reset_nothing_is_held():
    q = DeviceSequences(FakeRunner(), 2)
    feed(q, 0, [300, 301], drawing(1))
    q.step([0])
    q.reset()
    assert q.tokens == [[], []]
    feed(q, 0, [302], drawing(1))
    assert q.step([0])[0].token == alone([302], 1)[0]


def test_an_error_is_of_its_sequence_alone():
    q = DeviceSequences(FakeRunner(), 2)
    feed(q, 0, [300], drawing(FAILS))
    feed(q, 1, [301], drawing(1))
    bad, good = q.step([0, 1])
    assert isinstance(bad, HotsetError)
    assert good.token == alone([301], 1)[0]


def test_a_mask_knows_every_token_before_it():
    asked = []

    def mask(drawn):
        asked.append(list(drawn))
        return pack(np.arange(N_VOCAB) == 350 + len(drawn))

    q = DeviceSequences(FakeRunner(), 2)
    feed(q, 0, [300], drawing(1, mask=mask))
    feed(q, 1, [301], drawing(2))
    got = [q.step([0, 1])[0].token for _ in range(4)]
    assert got == [350, 351, 352, 353]
    assert all(drawn == [350 + i for i in range(len(drawn))] for drawn in asked)
    assert q.tokens[1][1:] == alone([301], 4)


def test_logits_are_those_that_a_token_was_drawn_from():
    q = DeviceSequences(FakeRunner(), 2)
    how = drawing(1, wants_logits=True)
    feed(q, 0, [300], how)
    feed(q, 1, [301], drawing(1))
    for _ in range(3):
        first, second = q.step([0, 1])
        assert first.token == sample(first.logits, how.params, q.tokens[0][:-1], 1, len(q.tokens[0]) - 1)
        assert second.logits is None
