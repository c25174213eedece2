// Bars of what lies in which memory.

import { bytes } from "./units.js";
import { element } from "./inline.js";

const PLACES = { gpu: "GPU", host: "Host" };

// `rows` [{name, where, bytes, note}]; `budget` is what the GPU may hold in all, or null.
export function showMemory(box, rows, budget) {
  const places = [...new Set(rows.map((row) => row.where))];
  box.replaceChildren(...places.flatMap((where) => place(where, rows.filter((row) => row.where === where && row.bytes > 0), budget)));
}

function place(where, rows, budget) {
  const used = rows.reduce((sum, row) => sum + row.bytes, 0);
  const room = where === "gpu" && budget !== null ? Math.max(budget - used, 0) : 0;
  const bar = element("div", ...rows.map((row, i) => part(row.bytes, `use${i % 7}`)), ...(room ? [part(room, "free")] : []));
  bar.className = "bar";
  bar.setAttribute("aria-hidden", "true");
  const list = element("ul", ...rows.map((row, i) => entry(row, `use${i % 7}`)));
  list.className = "uses";
  const total = room ? `${bytes(used)} of ${bytes(used + room)}` : bytes(used);
  return [element("h3", `${PLACES[where] ?? where}: ${total}`), bar, list];
}

function part(size, kind) {
  const node = element("span");
  node.className = kind;
  node.style.flexGrow = size;
  return node;
}

function entry({ name, bytes: size, note }, kind) {
  const swatch = element("span");
  swatch.className = `swatch ${kind}`;
  const about = element("span", note ? ` ${note}` : "");
  about.className = "hint";
  return element("li", swatch, `${name} ${bytes(size)}`, about);
}
