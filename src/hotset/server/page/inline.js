// Text of one Markdown paragraph -> DOM nodes. Nothing of the text ever becomes HTML: it is only put into text nodes.
//
// One pass from left to right; what may open something (emphasis, a link) begins a frame that collects nodes. A frame that is never
// closed gives its nodes back as they are, so the work stays in proportion to the text, whatever the text is.

// Deeper nesting is shown as it is written.
const MAX_DEPTH = 12;
const MAX_URL = 2000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const TARGET = /\(\s{0,9}<?((?:[^\s<>()]|\([^\s<>()]{0,500}\)){1,2000})>?(?:\s{1,9}"[^"\n]{0,500}")?\s{0,9}\)/y;
const BARE_URL = /https?:\/\/[^\s<>"'`\\]{1,2000}/iy;
const PLAIN = /[^\\`*_~[\]!<hH\n]+/y;
const TAGS = { "*": ["em", "strong"], _: ["em", "strong"], "~": [null, "del"] };

export function inline(text) {
  return new Inline(text).nodes();
}

// The address as it is followed, or null unless it is one of the web's.
export function safeUrl(text) {
  if (text.length > MAX_URL || !/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

// Children are texts, nodes, and lists of these.
export function element(tag, ...children) {
  const node = document.createElement(tag);
  for (const child of children.flat()) node.append(child);
  return node;
}

function link(href, children) {
  const node = element("a", children);
  node.href = href;
  node.rel = "noopener noreferrer";
  node.target = "_blank";
  return node;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.frames = [{ mark: "", kind: "", nodes: [] }];
    this.open = { "*": 0, _: 0, "~": 0, "[": 0 };
    this.noBackticks = new Set();
  }

  nodes() {
    const { text } = this;
    while (this.at < text.length) {
      const c = text[this.at];
      if (c === "\\") this.escape();
      else if (c === "`") this.code();
      else if (c in TAGS) this.emphasis(c);
      else if (c === "[") this.beginLink();
      else if (c === "]") this.endLink();
      else if (c === "<") this.angle();
      else if (c === "\n") this.newline();
      else if (c === "h" || c === "H") this.bareUrl();
      else this.plain();
    }
    this.unwind(1);
    return this.frames[0].nodes;
  }

  add(node) {
    const into = this.frames.at(-1).nodes;
    if (typeof node === "string" && typeof into.at(-1) === "string") into[into.length - 1] += node;
    else into.push(node);
  }

  addAll(nodes) {
    for (const node of nodes) this.add(node);
  }

  take(n) {
    this.add(this.text.slice(this.at, this.at + n));
    this.at += n;
  }

  matched(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  runOf(c) {
    let n = 1;
    while (this.text[this.at + n] === c) n += 1;
    return n;
  }

  plain() {
    this.take(this.matched(PLAIN)?.[0].length ?? 1);
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (PUNCTUATION.test(next)) {
      this.add(next);
      this.at += 2;
    } else {
      this.take(1);
    }
  }

  newline() {
    this.add(element("br"));
    this.at += 1;
  }

  code() {
    const n = this.runOf("`");
    const end = this.noBackticks.has(n) ? -1 : this.closingBackticks(n);
    if (end < 0) {
      this.noBackticks.add(n);
      this.take(n);
      return;
    }
    let inner = this.text.slice(this.at + n, end).replaceAll("\n", " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
    this.add(element("code", inner));
    this.at = end + n;
  }

  closingBackticks(n) {
    const { text } = this;
    for (let i = text.indexOf("`", this.at + n); i >= 0; i = text.indexOf("`", i)) {
      const begin = i;
      while (text[i] === "`") i += 1;
      if (i - begin === n) return begin;
    }
    return -1;
  }

  emphasis(c) {
    let left = this.runOf(c);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + left] ?? " ";
    this.at += left;
    const isWord = (x) => /[\p{L}\p{N}]/u.test(x);
    const opens = !/\s/.test(after) && !(c === "_" && isWord(before));
    const closes = !/\s/.test(before) && !(c === "_" && isWord(after));
    if (left > 3 || (c === "~" && left !== 2)) {
      this.add(c.repeat(left));
      return;
    }
    while (closes && left > 0 && this.open[c] > 0) {
      const i = this.closable(c, left);
      if (i < 0) break;
      const size = this.frames[i].mark.length;
      this.unwind(i + 1);
      const { nodes } = this.pop();
      this.add(element(TAGS[c][size - 1], nodes));
      left -= size;
    }
    if (!opens || left === 0) {
      this.add(c.repeat(left));
      return;
    }
    if (left > 1) this.push(c, c.repeat(2));
    if (left !== 2) this.push(c, c);
  }

  // The frame that a run of `n` closes: the last one of that length, or else of a smaller one.
  closable(c, n) {
    const exact = this.frames.findLastIndex((frame) => frame.kind === c && frame.mark.length === n);
    return exact >= 0 ? exact : this.frames.findLastIndex((frame) => frame.kind === c && frame.mark.length <= n);
  }

  beginLink() {
    this.at += 1;
    this.push("[", "[");
  }

  endLink() {
    this.at += 1;
    const i = this.open["["] > 0 ? this.frames.findLastIndex((frame) => frame.kind === "[") : -1;
    if (i < 0) {
      this.add("]");
      return;
    }
    const target = this.matched(TARGET);
    const href = target && safeUrl(target[1]);
    this.unwind(i + 1);
    const { nodes } = this.pop();
    if (!href) {
      this.addAll(["[", ...nodes, "]"]);
      return;
    }
    // A link holds no link: what looked like the beginning of one around it is none.
    for (const frame of this.frames.filter((one) => one.kind === "[")) frame.kind = "";
    this.open["["] = 0;
    this.add(link(href, nodes));
    this.at += target[0].length;
  }

  angle() {
    const end = this.text.slice(this.at, this.at + MAX_URL).indexOf(">");
    const href = end > 0 ? safeUrl(this.text.slice(this.at + 1, this.at + end)) : null;
    if (href && this.open["["] === 0) {
      this.add(link(href, this.text.slice(this.at + 1, this.at + end)));
      this.at += end + 1;
    } else {
      this.take(1);
    }
  }

  bareUrl() {
    const isInWord = /[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? " ");
    const found = isInWord || this.open["["] > 0 ? null : this.matched(BARE_URL);
    const shown = found?.[0].replace(/[)\].,;:!?*_~]{1,50}$/, "");
    const href = shown && safeUrl(shown);
    if (href) {
      this.add(link(href, shown));
      this.at += shown.length;
    } else {
      this.take(1);
    }
  }

  push(kind, mark) {
    if (this.frames.length > MAX_DEPTH) {
      this.add(mark);
      return;
    }
    this.open[kind] += 1;
    this.frames.push({ kind, mark, nodes: [] });
  }

  pop() {
    const frame = this.frames.pop();
    if (frame.kind) this.open[frame.kind] -= 1;
    return frame;
  }

  // Frames from number `first` on were never closed: their marks are text.
  unwind(first) {
    const unclosed = [];
    while (this.frames.length > first) unclosed.unshift(this.pop());
    for (const { mark, nodes } of unclosed) {
      this.add(mark);
      this.addAll(nodes);
    }
  }
}
