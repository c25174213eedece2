// The form of settings: what it says, and that it is still there after a reload of the tab.

const NAME = "hotset-settings";
const SAMPLING = ["temperature", "top_k", "top_p", "min_p", "seed", "max_tokens"];
// A text could be continued to the end of the context.
const TEXT_TOKENS = 256;

export class Settings {
  // `props` are the server's; `onMode` is called when the user changes between chat and text.
  constructor(form, props, onMode) {
    this.form = form;
    const { params } = props.default_generation_settings;
    for (const name of SAMPLING) {
      if (params[name] !== null) form.elements[name].placeholder = params[name];
    }
    this.restore();
    if (!props.chat_template) {
      form.elements.mode.value = "text";
      form.elements.mode[0].disabled = true;
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => {
      this.keep();
      if (event.target.name === "mode") {
        this.adapt();
        onMode();
      }
    });
    this.adapt();
  }

  get isChat() {
    return this.form.elements.mode.value === "chat";
  }

  // What a request is made of; fields left empty are the server's to choose.
  read() {
    const { elements } = this.form;
    const sampling = {};
    for (const name of SAMPLING) {
      if (elements[name].value !== "") sampling[name] = elements[name].valueAsNumber;
    }
    if (!this.isChat) sampling.max_tokens ??= TEXT_TOKENS;
    return { isChat: this.isChat, system: elements.system.value.trim(), sampling };
  }

  adapt() {
    const { elements } = this.form;
    document.getElementById("system-label").hidden = !this.isChat;
    elements.max_tokens.placeholder = this.isChat ? "no limit" : TEXT_TOKENS;
  }

  keep() {
    try {
      sessionStorage.setItem(NAME, JSON.stringify(Object.fromEntries(new FormData(this.form))));
    } catch {
      // Storage may be forbidden; the form itself remembers until a reload.
    }
  }

  restore() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(NAME) ?? "{}");
      for (const [name, value] of Object.entries(kept)) this.form.elements[name].value = value;
    } catch {
      // As above.
    }
  }
}
