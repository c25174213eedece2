"""The policies in plain Python, written for reading: lists with the newest first, one class each. A victim is never held."""

from __future__ import annotations

from collections import Counter

import numpy as np


class Reference:
    """One pool: hits, empty slots, victims, overflow."""

    def __init__(self, n_slots, **_):
        self.n_slots, self.resident, self.held, self.hits, self.now = n_slots, [], set(), 0, 0
        self.start()

    def start(self):
        pass

    def needed(self, experts):
        pass

    def hit(self, e):
        pass

    def admit(self, e):
        pass

    def loose(self, queue):
        """The experts of a list that may leave, the oldest first."""
        return [e for e in reversed(queue) if e not in self.held]

    def request(self, experts, *, first=True, begins=False):
        self.held, self.now, self.first, self.begins = set(experts), self.now + 1, first, begins
        self.needed(experts)
        for e in experts:
            if e in self.resident:
                self.hits += 1
                self.hit(e)
                continue
            if len(self.resident) >= self.n_slots:
                victim = self.victim(e)
                if victim is None:
                    continue
                self.resident.remove(victim)
            self.resident.append(e)
            self.admit(e)


class Scored(Reference):
    def start(self):
        self.score = Counter()

    def victim(self, _):
        return min((e for e in self.resident if e not in self.held), key=lambda e: (self.score[e], e), default=None)


class LRU(Scored):
    def needed(self, experts):
        self.score.update({e: self.now - self.score[e] for e in experts})


class LFU(Scored):
    def needed(self, experts):
        self.score.update(experts)


class LRU2(Scored):
    def start(self):
        self.score, self.times = {}, {}

    def needed(self, experts):
        for e in experts:
            self.times[e] = [*self.times.get(e, []), self.now]
            self.score[e] = tuple(([0, *self.times[e]])[-2:])


class FIFO(Scored):
    def admit(self, e):
        self.score[e] = max(self.score.values(), default=0) + 1


class GDSF(Scored):
    def __init__(self, n_slots, cost):
        self.cost, self.uses, self.floor = cost, Counter(), 0.0
        super().__init__(n_slots)

    def hit(self, e):
        self.uses[e] += 1
        self.score[e] = self.floor + self.uses[e] * self.cost[e]

    def admit(self, e):
        self.uses[e] = 0
        self.hit(e)

    def victim(self, e):
        v = super().victim(e)
        self.floor = self.floor if v is None else self.score[v]
        return v


class Product(Scored):
    def start(self):
        self.recent, self.long, self.last = ({} for _ in range(3))

    @property
    def score(self):
        f = np.float32
        return {e: self.recent[e] * self.last[e] * (self.long[e] + f(0.375)) for e in self.recent}

    def needed(self, experts):
        for counts, half_life, kept in ((self.recent, 16, 0), (self.long, 128, 0.125), (self.last, 6, 1)):
            for e in counts if self.first else ():
                counts[e] *= np.float32(kept if self.begins else 1)
                counts[e] *= np.float32(2 ** (-1 / half_life))
        for e in experts:
            self.recent[e] = self.recent.get(e, np.float32(0)) + np.float32(1)
            self.long[e] = self.long.get(e, np.float32(0)) + np.float32(1)
            self.last[e] = np.float32(1)


class Clock(Reference):
    def start(self):
        self.queue, self.marked = [], set()

    def hit(self, e):
        self.marked.add(e)

    def admit(self, e):
        self.queue.insert(0, e)

    def victim(self, _):
        if not self.loose(self.queue):
            return None
        while True:
            e = self.queue.pop()
            if e not in self.marked and e not in self.held:
                return e
            if e not in self.held:
                self.marked.discard(e)
            self.queue.insert(0, e)


class Sieve(Clock):
    def start(self):
        super().start()
        self.hand = None

    def victim(self, _):
        if not self.loose(self.queue):
            return None
        at = len(self.queue) - 1 if self.hand is None else self.queue.index(self.hand)
        while self.queue[at] in self.marked or self.queue[at] in self.held:
            if self.queue[at] not in self.held:
                self.marked.discard(self.queue[at])
            at = at - 1 if at else len(self.queue) - 1
        victim = self.queue.pop(at)
        self.hand = self.queue[at - 1] if at else None
        return victim


class S3FIFO(Reference):
    def start(self):
        self.small, self.main, self.ghosts, self.uses = [], [], [], Counter()
        self.evicted, self.returns = False, set()

    def hit(self, e):
        self.uses[e] = min(self.uses[e] + 1, 3)

    def admit(self, e):
        self.uses[e] = 0
        fills = not self.evicted and len(self.small) >= max(self.n_slots // 10, 1)
        (self.main if e in self.returns or fills else self.small).insert(0, e)
        self.returns.discard(e)

    def victim(self, e):
        self.evicted = True
        if e in self.ghosts:
            self.ghosts.remove(e)
            self.returns.add(e)
        small_first = len(self.main) <= self.n_slots - self.n_slots // 10
        for of in (self.of_small, self.of_main) if small_first else (self.of_main, self.of_small):
            if (v := of()) is not None:
                return v
        return None

    def of_small(self):
        for e in self.loose(self.small):
            self.small.remove(e)
            if self.uses[e] < 2:
                self.ghosts = [e, *self.ghosts][: self.n_slots * 9 // 10]
                return e
            self.uses[e] = 0
            self.main.insert(0, e)
        return None

    def of_main(self):
        while self.loose(self.main):
            e = self.main.pop()
            if e not in self.held:
                if not self.uses[e]:
                    return e
                self.uses[e] -= 1
            self.main.insert(0, e)
        return None


class SLRU(Reference):
    protected_share = (4, 5)

    def start(self):
        self.probation, self.protected = [], []

    def most_protected(self):
        return self.n_slots * 4 // 5

    def hit(self, e):
        (self.probation if e in self.probation else self.protected).remove(e)
        self.protected.insert(0, e)
        if len(self.protected) > self.most_protected():
            self.probation.insert(0, self.protected.pop())

    def admit(self, e):
        self.probation.insert(0, e)

    def victim(self, _):
        for queue in (self.probation, self.protected):
            for e in self.loose(queue):
                queue.remove(e)
                return e
        return None


class TinyLFU(SLRU):
    def start(self):
        super().start()
        self.window, self.uses, self.since = [], Counter(), 0

    def window_slots(self):
        return max(1, self.n_slots // 100)

    def most_protected(self):
        return (self.n_slots - self.window_slots()) * 4 // 5

    def needed(self, experts):
        self.uses.update(experts)
        self.since += len(experts)
        if self.since >= 10 * self.n_slots:
            self.since = 0
            self.uses = Counter({e: n // 2 for e, n in self.uses.items()})

    def hit(self, e):
        if e in self.window:
            self.window.remove(e)
            self.window.insert(0, e)
        else:
            super().hit(e)

    def admit(self, e):
        self.window.insert(0, e)
        if len(self.window) > self.window_slots():
            self.probation.insert(0, self.window.pop())

    def victim(self, _):
        old = [*self.loose(self.probation), *self.loose(self.protected)][:1]
        full = len(self.window) >= self.window_slots()
        young = [e for e in self.window[-1:] if full and e not in self.held] or (
            [] if old else self.loose(self.window)[:1]
        )
        chosen = young if not old or (young and self.uses[young[0]] <= self.uses[old[0]]) else old
        for queue in (self.window, self.probation, self.protected):
            if chosen and chosen[0] in queue:
                queue.remove(chosen[0])
        return chosen[0] if chosen else None


class ARC(Reference):
    def start(self):
        self.once, self.often, self.once_ghosts, self.often_ghosts, self.target = [], [], [], [], 0.0

    def hit(self, e):
        (self.once if e in self.once else self.often).remove(e)
        self.often.insert(0, e)

    def admit(self, e):
        ghosts = [g for g in (self.once_ghosts, self.often_ghosts) if e in g]
        for g in ghosts:
            g.remove(e)
        (self.often if ghosts else self.once).insert(0, e)

    def victim(self, e):
        b1, b2 = self.once_ghosts, self.often_ghosts
        if e in b1:
            self.target = min(self.target + max(len(b2) / len(b1), 1), self.n_slots)
        elif e in b2:
            self.target = max(self.target - max(len(b1) / len(b2), 1), 0)
        elif len(self.once) + len(b1) >= self.n_slots:
            if not b1:
                return self.leave(self.once, None)
            b1.pop()
        elif len(self.once) + len(self.often) + len(b1) + len(b2) >= 2 * self.n_slots:
            b2.pop()
        n = len(self.once)
        pairs = [(self.once, b1), (self.often, b2)]
        if not (n and (n > self.target or (e in b2 and n == self.target))):
            pairs.reverse()
        for queue, ghosts in pairs:
            if (v := self.leave(queue, ghosts)) is not None:
                return v
        return None

    def leave(self, queue, ghosts):
        for e in self.loose(queue):
            queue.remove(e)
            if ghosts is not None:
                ghosts.insert(0, e)
            return e
        return None


REFERENCES = {
    "lru": LRU,
    "lfu": LFU,
    "lru-2": LRU2,
    "fifo": FIFO,
    "gdsf": GDSF,
    "product": Product,
    "clock": Clock,
    "sieve": Sieve,
    "s3-fifo": S3FIFO,
    "slru": SLRU,
    "w-tinylfu": TinyLFU,
    "arc": ARC,
}
