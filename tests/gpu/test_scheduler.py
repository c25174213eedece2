"""Several requests at once on a GPU: the answers of each alone, an expert cache that changes its size meanwhile, and memory that is given back."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

import hotset  # noqa: E402
from hotset.config import SamplingParams  # noqa: E402
from hotset.engine.job import Finished, Job, Token  # noqa: E402
from hotset.engine.memory import SLOT_ROUNDING  # noqa: E402
from hotset.engine.scheduler import Scheduler  # noqa: E402
from hotset.kernels.token_mask import pack  # noqa: E402

N = 8
TEXTS = (
    "static int",
    "The Debian installer is",
    "import os\n" * 60,
    "A",
    "The",
    "class Foo:\n    def",
    "for i in range(",
    "0 1 2 3",
)
N_TOKENS = (24, 40, 16, 33, 8, 40, 1, 29)


@pytest.fixture(scope="module")
def engine():
    return hotset.load("demo", device="cuda", n_ctx=1024, n_parallel=N, expert_cache="25%")


def job(engine, i: int, **more) -> Job:
    heard = []
    params = SamplingParams(temperature=(0.0, 0.8, 1.2)[i % 3], max_tokens=N_TOKENS[i])
    made = Job(engine.tokenize(TEXTS[i]), params, 100 + i, heard.append, **more)
    made.heard = heard
    return made


def run(scheduler: Scheduler, jobs: list[Job]) -> list[list[int]]:
    scheduler.submit(jobs)
    while scheduler.n_running or scheduler.n_waiting:
        scheduler.turn()
    assert all(isinstance(one.heard[-1], Finished) for one in jobs)
    return [[e.token for e in one.heard if isinstance(e, Token)] for one in jobs]


@pytest.fixture(scope="module")
def alone(engine):
    scheduler = Scheduler(engine, n_parallel=N, max_waiting=N)
    found = []
    for i in range(N):
        scheduler.restart()  # nothing is taken over
        found += run(scheduler, [job(engine, i)])
    return found


def test_an_answer_is_the_same_beside_seven_others(engine, alone):
    scheduler = Scheduler(engine, n_parallel=N, max_waiting=N, reuse_drawn=False)
    for _ in range(2):  # cold, then with the prompts held already
        assert run(scheduler, [job(engine, i) for i in range(N)]) == alone


def test_it_is_the_same_where_few_run_at_once_and_come_one_after_another(engine, alone):
    for n_parallel in (1, 2, 3, 5):
        scheduler = Scheduler(engine, n_parallel=n_parallel, max_waiting=N, reuse_drawn=False)
        assert run(scheduler, [job(engine, i) for i in range(N)]) == alone


def test_logprobs_and_masks_change_no_other_answer(engine, alone):
    scheduler = Scheduler(engine, n_parallel=N, max_waiting=N, reuse_drawn=False)
    allowed = np.arange(engine.config.n_vocab) % 2 == 0
    jobs = [
        job(engine, i, n_top=3 if i == 1 else None, mask=(lambda _: pack(allowed)) if i == 5 else None)
        for i in range(N)
    ]
    found = run(scheduler, jobs)
    assert [t for i, t in enumerate(found) if i != 5] == [t for i, t in enumerate(alone) if i != 5]
    assert all(token % 2 == 0 for token in found[5])
    logprobs = [e.logprob for e in jobs[1].heard if isinstance(e, Token)]
    assert all(p.value <= p.top[0][1] <= 0 for p in logprobs)


def test_the_cache_changes_its_size_meanwhile_and_its_memory_is_given_back(engine, alone):
    scheduler = Scheduler(engine, n_parallel=N, max_waiting=N, reuse_drawn=False)
    jobs = [job(engine, i) for i in range(N)]
    scheduler.submit(jobs)
    held = {}
    for size in ("100%", "10%", "off", "100%", "25%"):
        for _ in range(2):
            scheduler.turn()
        done = scheduler.call(lambda size=size: engine.resize_cache(size))
        scheduler.turn()
        assert done.exception(0) is None
        held[size] = torch.cuda.memory_allocated(), engine.runner.shape.slot_bytes
    assert held["100%"][0] - held["off"][0] >= held["100%"][1]
    while scheduler.n_running:
        scheduler.turn()
    assert [[e.token for e in one.heard if isinstance(e, Token)] for one in jobs] == alone


def test_what_slots_give_up_goes_back_to_the_driver(shared):
    engine = hotset.load(shared / "models/lab-moe-Q4_K_M.gguf", device="cuda", expert_cache="100%", n_ctx=256)
    slots = engine.runner.shape.slot_bytes
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    for size, left in (("10%", 0.1), ("off", 0), ("100%", 1), ("25%", 0.25)):
        engine.resize_cache(size)
        given_back = torch.cuda.mem_get_info()[0] - free
        assert given_back == pytest.approx((1 - left) * slots, abs=0.05 * slots + SLOT_ROUNDING)
