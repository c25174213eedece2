// One turn of the conversation on the page: what was asked, and the answer as it comes.

import { element } from "./inline.js";
import { Rendered } from "./markdown.js";

const FOOT = { length: "the limit of tokens was reached", stopped: "stopped" };

export class Message {
  // `isChat`: the answer is Markdown; otherwise it goes on in the middle of the text asked for.
  constructor(log, prompt, isChat) {
    this.isChat = isChat;
    this.node = element("article");
    this.answer = element("div");
    this.answer.className = "answer";
    this.reasoning = element("pre");
    this.thoughts = element("details", element("summary", "Reasoning"), this.reasoning);
    this.thoughts.hidden = true;
    this.foot = element("p");
    this.foot.className = "hint";
    this.problem = element("p");
    this.problem.className = "problem";
    this.problem.setAttribute("role", "alert");
    this.problem.hidden = true;
    this.tools = element("div");
    this.tools.className = "buttons";
    this.build(prompt);
    log.append(this.node);
  }

  build(prompt) {
    const asked = element("div", prompt);
    asked.className = this.isChat ? "asked" : "given";
    const who = (text) => {
      const label = element("h3", text);
      label.className = "unseen";
      return label;
    };
    if (this.isChat) {
      this.rendered = new Rendered(this.answer);
      this.node.append(who("You"), asked, who("Answer"), this.thoughts, this.answer);
    } else {
      this.answer.classList.add("continued");
      const text = element("div", asked, this.answer);
      text.className = "text";
      this.node.append(who("Text, continued"), text);
    }
    this.node.append(this.problem, this.foot, this.tools);
  }

  begin() {
    this.node.setAttribute("aria-busy", "true");
    this.problem.hidden = true;
    this.foot.textContent = "";
    this.offer([]);
  }

  show(text, reasoning) {
    if (this.isChat) this.rendered.show(text);
    else this.answer.textContent = text;
    this.thoughts.hidden = !reasoning;
    this.reasoning.textContent = reasoning;
  }

  say(text) {
    this.foot.textContent = text;
  }

  end(reason, facts) {
    this.node.removeAttribute("aria-busy");
    this.say([...facts, FOOT[reason]].filter(Boolean).join(" · "));
  }

  fail(text) {
    this.problem.textContent = text;
    this.problem.hidden = false;
  }

  // Buttons below the answer: [[name, what it does], ...].
  offer(buttons) {
    const nodes = buttons.map(([name, act]) => {
      const button = element("button", name);
      button.type = "button";
      button.className = "quiet";
      button.addEventListener("click", act);
      return button;
    });
    this.tools.replaceChildren(...nodes);
  }
}
