// Markdown -> DOM nodes, for text that nobody vouches for: headings, paragraphs, lists, quotes, tables, rules, code. HTML in it is text.
//
// `Rendered` keeps the nodes of blocks that did not change, so that a growing answer costs the work of its last block.

import { element, inline } from "./inline.js";

// Lists and quotes deeper than this are paragraphs.
const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]{0,40})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,15})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$/;

export class Rendered {
  constructor(container) {
    this.container = container;
    this.shown = [];
  }

  // Show `text` in place of what is shown.
  show(text) {
    const blocks = blocksOf(text.replaceAll("\r\n", "\n").split("\n"), 0);
    let same = 0;
    while (same < blocks.length && same < this.shown.length && this.shown[same].source === blocks[same].source) same += 1;
    for (const { node } of this.shown.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const node = build(block, 0);
      this.container.append(node);
      this.shown.push({ source: block.source, node });
    }
  }
}

// Lines -> blocks {kind, source, ...}; `source` tells whether a block changed.
function blocksOf(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at, depth);
    block.source = `${block.kind}\n${lines.slice(at, end).join("\n")}`;
    blocks.push(block);
    at = end;
  }
  return blocks;
}

// The block that begins at a line which is not blank, and where it ends.
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fenced(lines, at);
  if (HEADING.test(line)) return [{ kind: "heading", level: line.trimStart().match(/^#+/)[0].length, text: headingText(line) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function beginsBlock(lines, at, depth) {
  const line = lines[at];
  const isNested = depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line));
  return isNested || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || isTable(lines, at);
}

function headingText(line) {
  return line.trim().replace(/^#+/, "").trim().replace(/(^|\s)#{1,50}$/, "");
}

function fenced(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  const indent = lines[at].search(/\S/);
  let end = at + 1;
  const isClosing = (line) => line.search(/\S/) < 4 && line.trim().length >= fence.length && !line.trim().replaceAll(fence[0], "");
  while (end < lines.length && !isClosing(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, Math.max(line.search(/\S/), 0))));
  return [{ kind: "code", language, text: code.join("\n") }, Math.min(end + 1, lines.length)];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return [{ kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")) }, end];
}

function list(lines, at) {
  const [, , first] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first);
  const items = [];
  let end = at;
  for (;;) {
    const next = skipBlank(lines, end);
    const found = next < lines.length && ITEM.exec(lines[next]);
    if (!found || /\d/.test(found[2]) !== isOrdered || RULE.test(lines[next])) break;
    end = next;
    const [whole, indent, mark, gap] = found;
    const width = indent.length + mark.length + Math.max(gap.length, 1);
    const item = [lines[end].slice(whole.length)];
    end += 1;
    for (; end < lines.length && belongs(lines, end, indent.length); end += 1) item.push(withoutIndent(lines[end], width));
    items.push(item);
  }
  return [{ kind: "list", isOrdered, start: parseInt(first, 10), items }, end];
}

function skipBlank(lines, at) {
  let next = at;
  while (next < lines.length && !lines[next].trim()) next += 1;
  return next;
}

// Whether a line is part of an item whose mark stands behind `indent` spaces.
function belongs(lines, at, indent) {
  const line = lines[at];
  if (!line.trim()) return at + 1 < lines.length && lines[at + 1].search(/\S/) > indent;
  if (line.search(/\S/) > indent) return true;
  return Boolean(lines[at - 1].trim()) && !beginsBlock(lines, at, 0);
}

function withoutIndent(line, width) {
  return line.slice(Math.min(width, Math.max(line.search(/\S/), 0)));
}

function isTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1].trimEnd());
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  return [{ kind: "table", head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells) }, end];
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split("|").map((cell) => cell.trim());
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !beginsBlock(lines, end, depth)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).map((line) => line.trim().replace(/\\$/, "")).join("\n") }, end];
}

const BUILDERS = {
  paragraph: ({ text }) => element("p", inline(text)),
  // The page's own headings stand above those of an answer.
  heading: ({ level, text }) => element(`h${Math.min(level + 2, 6)}`, inline(text)),
  rule: () => element("hr"),
  code: codeBlock,
  quote: ({ lines }, depth) => element("blockquote", buildAll(lines, depth + 1)),
  list: listNode,
  table: tableNode,
};

function build(block, depth) {
  return BUILDERS[block.kind](block, depth);
}

function buildAll(lines, depth) {
  return blocksOf(lines, depth).map((block) => build(block, depth));
}

function listNode({ isOrdered, start, items }, depth) {
  const node = element(isOrdered ? "ol" : "ul");
  if (isOrdered && start !== 1) node.start = start;
  for (const lines of items) {
    const nodes = buildAll(lines, depth + 1);
    // A single paragraph is the item's text.
    const isText = nodes[0]?.tagName === "P" && nodes.slice(1).every((one) => one.tagName === "UL" || one.tagName === "OL");
    if (isText) nodes[0] = [...nodes[0].childNodes];
    node.append(element("li", nodes.flat()));
  }
  return node;
}

function tableNode({ head, rows }) {
  const heads = head.map((text) => {
    const cell = element("th", inline(text));
    cell.scope = "col";
    return cell;
  });
  const body = rows.map((row) => element("tr", head.map((_, i) => element("td", inline(row[i] ?? "")))));
  const node = element("table", element("thead", element("tr", heads)), element("tbody", body));
  const box = element("div", node);
  box.className = "table-scroll";
  return box;
}

function codeBlock({ language, text }) {
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.setAttribute("aria-label", `Copy the code${language ? ` (${language})` : ""}`);
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(text)) ? "Copied" : "Not copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const code = element("pre", element("code", text));
  code.tabIndex = 0;
  const node = element("div", element("span", language), copy, code);
  node.className = "code";
  return node;
}

async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  // Pages that came over plain HTTP from another machine have no clipboard.
  const field = element("textarea", text);
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
