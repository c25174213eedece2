// The conversation: sends, streams, stops, and begins an answer anew.

import { events } from "./api.js";
import { Message } from "./message.js";

// Faster changes than this are not read anyway; and showing takes a fifth of the time at most.
const SHOW_MS = 80;
const REST = 4;
const ENDS = { failed: "answer failed", stopped: "answer stopped" };

export class Chat {
  // `log` is the element that shows the turns; `settings()` -> {isChat, system, sampling}; `onState(isBusy, text)` follows what happens.
  constructor(log, settings, onState) {
    this.log = log;
    this.settings = settings;
    this.onState = onState;
    this.turns = [];
    this.abort = null;
  }

  get isBusy() {
    return this.abort !== null;
  }

  send(prompt) {
    this.turns.at(-1)?.message.offer([]);
    const { isChat } = this.settings();
    const message = new Message(this.log, prompt, isChat);
    const turn = { prompt, isChat, text: "", reasoning: "", message };
    this.turns.push(turn);
    this.scroll(true);
    return this.generate(turn);
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.log.replaceChildren();
  }

  async generate(turn) {
    const abort = new AbortController();
    this.abort = abort;
    turn.message.begin();
    this.onState(true, "writing");
    const answer = new Answer(turn, () => this.show(turn));
    let reason = "stopped";
    try {
      const [path, body] = this.request(turn);
      for await (const found of events(path, body, abort.signal)) answer.take(found);
      reason = answer.reason;
    } catch (error) {
      if (!abort.signal.aborted) {
        reason = "failed";
        turn.message.fail(error.message);
      }
    }
    answer.finish();
    turn.message.end(reason, answer.facts());
    if (this.abort === abort) this.abort = null;
    turn.message.offer(this.choices(turn));
    this.onState(this.isBusy, ENDS[reason] ?? "answer complete");
    this.scroll(false);
  }

  choices(turn) {
    const again = () => {
      turn.text = "";
      turn.reasoning = "";
      this.show(turn);
      this.generate(turn);
    };
    return turn.isChat ? [["Regenerate", again]] : [["Regenerate", again], ["Go on", () => this.generate(turn)]];
  }

  // The path and body that ask for a turn's answer.
  request(turn) {
    const { system, sampling } = this.settings();
    const options = { ...sampling, stream_options: { include_usage: true } };
    if (!turn.isChat) return ["/v1/completions", { max_tokens: null, ...options, prompt: turn.prompt + turn.text }];
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const one of this.turns) {
      const isLast = one === turn;
      // What was never answered is not part of what was said.
      if (!isLast && !one.text) continue;
      messages.push({ role: "user", content: one.prompt });
      if (isLast) break;
      messages.push({ role: "assistant", content: one.text });
    }
    return ["/v1/chat/completions", { ...options, messages }];
  }

  show(turn) {
    const follow = this.isAtEnd;
    turn.message.show(turn.text, turn.reasoning);
    if (follow) this.scroll(true);
  }

  get isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  scroll(always) {
    if (always || this.isAtEnd) this.log.scrollTop = this.log.scrollHeight;
  }
}

// Gathers the events of one answer into its turn; calls `show` now and then.
class Answer {
  constructor(turn, show) {
    this.turn = turn;
    this.show = show;
    this.timer = null;
    this.reason = "stop";
    this.timings = null;
    this.usage = null;
    this.n = 0;
    this.firstMs = 0;
    this.pause = SHOW_MS;
  }

  take(found) {
    this.usage = found.usage ?? this.usage;
    this.timings = found.timings ?? this.timings;
    const choice = found.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const text = choice.text ?? choice.delta?.content ?? "";
    const reasoning = choice.delta?.reasoning_content ?? "";
    if (!text && !reasoning) return;
    this.n += 1;
    this.firstMs ||= performance.now();
    this.turn.text += text;
    this.turn.reasoning += reasoning;
    this.timer ??= setTimeout(() => this.update(), this.pause);
  }

  update() {
    this.timer = null;
    const begin = performance.now();
    this.show();
    this.pause = Math.max(SHOW_MS, REST * (performance.now() - begin));
    const seconds = (begin - this.firstMs) / 1000;
    if (this.n > 1) this.turn.message.say(`${((this.n - 1) / seconds).toFixed(1)} tok/s`);
  }

  finish() {
    clearTimeout(this.timer);
    this.timer = null;
    this.show();
  }

  // What is known of the speed: the server's own numbers, or else those seen from here.
  facts() {
    const facts = [];
    const t = this.timings;
    if (t) facts.push(`${t.predicted_n} tokens, ${t.predicted_per_second.toFixed(1)} tok/s`);
    else if (this.n) facts.push(`about ${this.n} tokens`);
    if (t?.prompt_n) facts.push(`prompt of ${t.prompt_n + t.cache_n}${t.cache_n ? `, ${t.cache_n} reused` : ""}: ${(t.prompt_ms / 1000).toFixed(2)} s`);
    return facts;
  }
}
