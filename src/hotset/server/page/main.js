// Waits for the server, then connects the page's parts.

import { getJson } from "./api.js";
import { CachePanel } from "./cache_panel.js";
import { Chat } from "./chat.js";
import { Settings } from "./settings.js";

const LOOK_AGAIN_MS = 500;
const byId = (id) => document.getElementById(id);

function say(text, isProblem = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("problem", isProblem);
}

// Comes back when the model is loaded; meanwhile shows how far it is.
async function ready() {
  const bar = byId("loading");
  for (;;) {
    const health = await fetch("/health").then((response) => response.json(), () => ({ status: "unreachable" }));
    bar.hidden = health.status !== "loading";
    if (health.status === "ok") return;
    if (health.progress) {
      const { stage, done, total } = health.progress;
      Object.assign(bar, { max: Math.max(total, 1), value: done });
      say(`loading: ${stage}`);
    } else {
      say(health.error?.message ?? "the server cannot be reached", true);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
  }
}

async function start() {
  await ready();
  const [props, models] = await Promise.all([getJson("/props"), getJson("/v1/models")]);
  const { id, display_name: name, meta } = models.data[0];
  const title = name || id;
  document.title = `${title} · hotset`;
  byId("model").textContent = `${title} · ${props.device} · ${meta.n_ctx.toLocaleString("en")} tokens of context`;
  const panel = new CachePanel();
  converse(props, panel);
  await panel.start(props);
  say("ready");
}

function converse(props, panel) {
  const input = byId("input");
  const send = byId("send");
  const stop = byId("stop");
  const settings = new Settings(byId("settings"), props, restart);
  const chat = new Chat(byId("log"), () => settings.read(), onState);

  function onState(isBusy, text) {
    const focused = document.activeElement;
    send.hidden = isBusy;
    stop.hidden = !isBusy;
    if (focused === send) stop.focus();
    if (focused === stop) input.focus();
    say(text);
    if (isBusy) panel.watch();
    else panel.rest();
  }

  function adapt() {
    const name = settings.isChat ? "Message" : "Text to continue";
    byId("input-label").textContent = name;
    input.placeholder = name;
    byId("no-template").hidden = Boolean(props.chat_template);
  }

  function restart() {
    chat.clear();
    adapt();
  }

  function submit() {
    const text = settings.isChat ? input.value.trim() : input.value;
    if (!text || chat.isBusy) return;
    if (!byId("settings").checkValidity()) {
      byId("settings-box").open = true;
      byId("settings").reportValidity();
      return;
    }
    input.value = "";
    chat.send(text);
  }

  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") chat.stop();
  });
  stop.addEventListener("click", () => {
    chat.stop();
    input.focus();
  });
  byId("clear").addEventListener("click", () => {
    chat.clear();
    input.focus();
  });
  adapt();
  input.disabled = false;
  send.disabled = false;
  input.focus();
}

start().catch((error) => say(error.message, true));
