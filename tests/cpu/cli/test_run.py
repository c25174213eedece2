from __future__ import annotations

import io
import json
import os
import signal

import pytest

from fakes import fake_engine
from hotset.cli.answer import Interrupt, stream_answer
from hotset.experts.stats import Prefetched


@pytest.fixture
def typed(monkeypatch):
    def give(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return give


def test_only_the_generated_text_goes_to_stdout(call, loaded):
    loaded(text=" and so on")
    result = call("run", "demo", "-p", "Once", "-n", "6")
    assert result.code == 0
    assert result.out == " and so on and so on\n"
    assert "Once" not in result.err


def test_the_first_line_says_that_the_cache_is_inactive_and_why(call, loaded):
    loaded()
    lines = call("run", "demo", "-p", "x", "-n", "1").err.splitlines()
    assert lines[0] == "expert cache inactive: this is a fake"
    assert lines[1] == "note: a note"


def test_the_first_line_says_how_large_an_active_cache_is(call, loaded):
    loaded().runner.active = True
    result = call("run", "demo", "-p", "x", "-n", "4")
    assert result.err.splitlines()[0] == "expert cache active: 8 of 32 experts per layer, policy lrfu:16"
    assert "time in misses: 1.5 ms" in result.err


def test_every_default_is_shown_with_its_reason(call, loaded):
    loaded()
    text = call("run", "demo", "-p", "x", "-n", "1").err
    assert "physical cores that this process may use" in text
    assert "all that the model was made for" in text
    assert "no GPU can be used" in text
    assert "weights" in text
    assert "1.00 MiB" in text


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ((), {"graph": True, "page_lock": None, "prefetch": True}),
        (("--no-graph",), {"graph": False}),
        (("--no-prefetch",), {"prefetch": False}),
        (("--page-lock", "off"), {"page_lock": "off"}),
        (("--page-lock", "3GiB"), {"page_lock": "3GiB"}),
    ],
)
@pytest.mark.parametrize(
    "command", [("run", "demo", "-p", "x", "-n", "1"), ("bench", "demo", "-p", "8", "-n", "0", "-r", "1")]
)
def test_fallbacks_can_be_forced(call, loaded, command, given, arrives):
    engine = loaded()
    assert call(*command, *given).code == 0
    assert arrives.items() <= engine.load_arguments.items()


def test_what_was_asked_for_is_shown_as_asked(call, loaded):
    engine = loaded()
    text = call(
        "run", "demo", "-p", "x", "-n", "1", "-c", "99", "-t", "1", "--device", "cpu", "--expert-cache", "25%"
    ).err
    assert text.count("as asked") == 4
    assert engine.load_arguments["n_ctx"] == 99
    assert engine.load_arguments["expert_cache"] == "25%"


def test_the_report_has_speed_hit_rate_and_bytes(call, loaded):
    loaded()
    text = call("run", "demo", "-p", "x y", "-n", "5").err
    assert "decode: 4 tokens" in text
    assert "hit rate 75.0 %, 12 hits, 4 misses" in text
    assert "1000 B per token would have been fetched" in text
    assert "decode, per layer" not in text


def test_steps_that_ran_ahead_are_owned_up_to(call, loaded):
    loaded().runner.unused_steps = 2
    assert "2 more steps had begun" in call("run", "demo", "-p", "x", "-n", "3").err


def test_what_came_before_it_was_picked_is_owned_up_to(call, loaded):
    loaded().runner.prefetched = Prefetched(4 * 3 << 20, 4 * 5 << 20)
    text = call("run", "demo", "-p", "x", "-n", "5").err
    assert "brought before it was picked, per token: 3.00 MiB that was needed, 5.00 MiB in vain" in text


@pytest.mark.parametrize(
    ("given", "prefetched", "shown"),
    [
        ((), Prefetched(0, 0), ("on", "likely misses of the next layer come")),
        ((), None, ("off", "no layer's experts are read by the GPU alone")),
        (("--no-prefetch",), None, ("off", "as asked")),
    ],
)
def test_whether_experts_come_ahead_is_shown_with_the_reason(call, loaded, given, prefetched, shown):
    runner = loaded().runner
    runner.device, runner.active = "cuda", True
    runner.prefetched = prefetched
    text = call("run", "demo", "-p", "x", "-n", "1", *given).err
    row = next(line for line in text.splitlines() if "prefetch" in line)
    assert all(part in row for part in shown)


def test_the_report_goes_layer_by_layer_on_demand(call, loaded):
    loaded()
    text = call("run", "demo", "-p", "x", "-n", "5", "--layers").err
    assert "decode, per layer" in text
    assert "8/32" in text


def test_json_is_one_line_alone_on_stdout_and_the_text_streams_to_stderr(call, loaded):
    loaded(text=" and so on")
    result = call("run", "demo", "-p", "Once", "-n", "3", "--json", "-s", "7")
    value = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert value["text"] == " and so on"
    assert (value["seed"], value["finish_reason"], value["device"]) == (7, "length", "cpu")
    assert value["stats"]["hits"] == 6
    assert " and so on" in result.err


def test_the_prompt_may_come_from_a_file_with_its_line_ends(call, loaded, tmp_path):
    engine = loaded()
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"one\r\ntwo\n")
    call("run", "-m", "demo", "-f", path, "-n", "1")
    assert engine.detokenize(engine.runner.sessions[0].prompts[0]) == "one\r\ntwo\n"


def test_sampling_options_reach_the_engine(call, loaded):
    engine = loaded()
    call(
        *("run", "demo", "-p", "x", "-n", "2", "--temp", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1"),
        *("--repeat-penalty", "1.1", "--repeat-last-n", "5", "--seed", "9", "--stop", "END", "--stop", "FIN"),
    )
    p = engine.runner.params
    assert (p.temperature, p.top_k, p.top_p, p.min_p) == (0.5, 3, 0.9, 0.1)
    assert (p.repeat_penalty, p.repeat_last_n, p.seed, p.stop, p.max_tokens) == (1.1, 5, 9, ("END", "FIN"), 2)


def test_minus_one_goes_on_to_the_end_of_the_context(call, loaded):
    engine = loaded(n_ctx=20)
    call("run", "demo", "-p", "x", "-n", "-1")
    assert len(engine.runner.sessions[0].tokens) == 20


def test_a_prompt_longer_than_the_context_is_an_error_of_the_user(call, loaded):
    loaded(n_ctx=4)
    result = call("run", "demo", "-p", "one two three four five six", "-n", "1")
    assert (result.code, result.out) == (1, "")
    assert "raise --ctx-size" in result.err


def test_lines_from_a_pipe_are_turns_of_one_chat(call, loaded, typed):
    engine = loaded(text=" and so on")
    typed("Hello\n\nAgain\n")
    result = call("run", "demo", "-n", "3")
    assert result.code == 0
    assert result.out == " and so on\n and so on\n"
    (session,) = engine.runner.sessions
    first, second = session.prompts
    assert second[: len(first)] == first
    assert "Hello" in engine.tokenizer.decode(first)
    assert "<|im_start|>user\nAgain" in engine.tokenizer.decode(second)


def test_clear_begins_a_new_chat_and_exit_leaves(call, loaded, typed):
    engine = loaded()
    typed("Hello\n/clear\nAgain\n/exit\nnever\n")
    result = call("run", "demo", "-n", "3")
    prompts = engine.runner.sessions[0].prompts
    assert len(prompts) == 2
    assert "Hello" not in engine.tokenizer.decode(prompts[1])
    assert "cleared" in result.err


def test_a_chat_as_json_lists_its_turns(call, loaded, typed):
    loaded()
    typed("Hello\nAgain\n")
    value = json.loads(call("run", "demo", "-n", "3", "--json").out)
    assert [turn["prompt"] for turn in value["turns"]] == ["Hello", "Again"]
    assert value["turns"][1]["reused_tokens"] > 0


def test_a_model_without_a_template_continues_the_text_of_all_turns(call, loaded, typed):
    engine = loaded(text=" and so on", template=False)
    typed("Hello\nAgain\n")
    result = call("run", "demo", "-n", "3")
    assert "no chat template" in result.err
    assert engine.tokenizer.decode(engine.runner.sessions[0].prompts[1]) == "Hello and so on\nAgain"


def test_a_model_without_a_template_does_not_talk_without_end(call, loaded, typed):
    engine = loaded(template=False)
    typed("Hello\n")
    call("run", "demo")
    assert engine.runner.params.max_tokens == 128


def test_a_line_that_no_longer_fits_the_context_is_left_out_and_the_chat_goes_on(call, loaded, typed):
    engine = loaded(n_ctx=30)
    typed("one two three four five six seven eight nine ten eleven\n/clear\nHi\n")
    result = call("run", "demo", "-n", "3")
    assert result.code == 0
    assert "the line was left out" in result.err
    assert len(engine.runner.sessions[0].prompts) == 1


def test_a_full_context_is_said(call, loaded, typed):
    loaded(n_ctx=30)
    typed("Hi\n")
    assert "the context of 30 tokens is full" in call("run", "demo").err


def test_the_demo_is_said_to_be_a_base_model(call, loaded):
    loaded()
    assert "base model" in call("run", "demo", "-p", "x", "-n", "1").err


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_stops_an_answer_between_two_tokens_and_what_came_is_kept():
    engine = fake_engine(text=" and so on")
    written: list[str] = []
    with Interrupt() as interrupt:
        engine.runner.on_token = lambda: len(written) == 2 and os.kill(os.getpid(), signal.SIGINT)
        answer = stream_answer(engine.stream("Once"), written.append, interrupt)
    assert "".join(written) == " and so on\n"
    assert answer.text == " and so on"
    assert len(answer.tokens) == 3


def test_ctrl_c_in_a_single_answer_ends_with_the_report_and_130(call, loaded):
    engine = loaded()
    engine.runner.on_token = lambda: os.kill(os.getpid(), signal.SIGINT)
    result = call("run", "demo", "-p", "x")
    assert result.code == 130
    assert "hit rate" in result.err or "nothing was decoded" in result.err


def test_a_run_begins_warm_unless_told_otherwise(call, loaded):
    engine = loaded()
    call("run", "demo", "-p", "x", "-n", "1")
    assert (engine.load_arguments["warm_start"], engine.load_arguments["slots_from_profile"]) == (True, False)
    call("run", "demo", "-p", "x", "-n", "1", "--no-warm-start", "--slots-from-profile")
    assert (engine.load_arguments["warm_start"], engine.load_arguments["slots_from_profile"]) == (False, True)
