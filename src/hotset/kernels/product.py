"""The policy `product`: what its reference and the lookup kernel must agree on. docs/policies.md says what it gains.

score = recent * last * (longer + FLOOR)

`recent` and `longer` count uses and fade with half-lives of 16 and 128 tokens; `last` is 1 at a use and fades with one of 6. Where an answer begins
`recent` is forgotten and KEPT of `longer` stays: the next one may be about something else. All is float32, rounded after every product and
sum, in this order.
"""

from __future__ import annotations

# What is kept of every expert, and the half-lives of the last three.
SCORE, RECENT, LONGER, LAST = range(4)
N_SCORES = 4
HALF_LIVES = (16.0, 128.0, 6.0)
KEPT = 1 / 8
FLOOR = 3 / 8
