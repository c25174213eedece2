// Everything beside the chat: asks for pictures of the expert cache while something is generated, shows them, and changes its size.

import { getJson, postJson } from "./api.js";
import { ExpertMap } from "./expert_map.js";
import { HitRate } from "./hit_rate.js";
import { element } from "./inline.js";
import { showMemory } from "./memory.js";
import { bytes, count, percent } from "./units.js";

// Five pictures a second.
const PERIOD_MS = 200;
const TABLE_MS = 1000;
// A fast model picks nearly every expert between two pictures; the map shows the picks of its last steps.
const SHOWN_STEPS = 4;
// The keyboard moves the slider step by step; the size is changed when it rests.
const REST_MS = 400;

const byId = (id) => document.getElementById(id);

export class CachePanel {
  constructor() {
    this.map = new ExpertMap(byId("map"), byId("map-cell"));
    this.rate = new HitRate(byId("plot"));
    this.slider = byId("cache-size");
    this.step = 0;
    this.advance = 0;
    this.watching = null;
    this.tableMs = 0;
    this.resting = null;
    this.isMoving = false;
    this.slider.addEventListener("input", () => {
      this.isMoving = true;
      this.describeSize(Number(this.slider.value));
    });
    this.slider.addEventListener("change", () => {
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.resize(), REST_MS);
    });
    byId("table-box").addEventListener("toggle", () => this.showTable());
  }

  async start(props) {
    showMemory(byId("memory"), props.memory, props.memory_budget);
    await this.look();
    this.showSize();
  }

  // Ask for pictures until `rest` is called.
  async watch() {
    if (this.watching) return;
    const watching = {};
    this.watching = watching;
    while (this.watching === watching) {
      const begin = performance.now();
      // What nobody sees is not worth the engine's time.
      if (!document.hidden) await this.look().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, begin + PERIOD_MS - performance.now())));
    }
  }

  // The last picture.
  async rest() {
    this.watching = null;
    await this.look().catch(() => {});
    this.showTable();
    setTimeout(() => this.watching || this.map.calm(), 2 * PERIOD_MS);
  }

  async look() {
    const skipped = Math.max(this.advance - SHOWN_STEPS, 0);
    const picture = await getJson(`/v1/experts?since=${this.step + skipped}`);
    this.advance = Math.max(picture.step - this.step, 0);
    this.step = picture.step;
    this.picture = picture;
    this.map.show(picture);
    this.rate.add(picture);
    this.showNumbers();
    if (performance.now() - this.tableMs > TABLE_MS) this.showTable();
  }

  showNumbers() {
    const p = this.picture;
    byId("hit-rate").textContent = percent(p.hit_rate);
    byId("hits").textContent = count(p.hits);
    byId("misses").textContent = count(p.misses);
    byId("fetched").textContent = p.tokens ? bytes(p.bytes_fetched / p.tokens) : "–";
    const reason = p.n_layers ? (p.active ? "" : p.reason) : "This model has no experts.";
    byId("cache-reason").textContent = reason;
    byId("cache-reason").hidden = !reason;
    const resident = p.layers.reduce((sum, layer) => sum + layer.resident.length, 0);
    const label = `Expert map: ${p.n_layers} layers of ${p.n_experts} experts, ${resident} resident, hit rate ${percent(p.hit_rate)}`;
    byId("map").setAttribute("aria-label", label);
  }

  showTable() {
    if (!byId("table-box").open || !this.picture) return;
    this.tableMs = performance.now();
    const rows = this.picture.layers.map((layer, i) => {
      const asked = layer.hits + layer.misses;
      const head = element("th", String(i));
      head.scope = "row";
      const facts = [layer.n_slots, count(layer.hits), count(layer.misses), percent(asked ? layer.hits / asked : null), layer.resident.join(" ")];
      return element("tr", head, ...facts.map((fact) => element("td", String(fact))));
    });
    byId("table").replaceChildren(...rows);
  }

  get slotsPerLayer() {
    return this.picture.n_layers ? Math.round(this.picture.n_slots / this.picture.n_layers) : 0;
  }

  showSize() {
    this.slider.max = this.picture.n_experts;
    this.slider.value = this.slotsPerLayer;
    this.slider.disabled = !this.picture.n_layers;
    this.describeSize(this.slotsPerLayer);
  }

  describeSize(n) {
    const { n_experts: all, n_slots: slots, slot_bytes: held } = this.picture;
    const share = all ? Math.round((100 * n) / all) : 0;
    const text = `${n} of ${all} experts per layer, ${share} %`;
    const size = n === this.slotsPerLayer && slots ? `, ${bytes(held)}` : "";
    byId("cache-note").textContent = text + size;
    this.slider.setAttribute("aria-valuetext", text);
  }

  async resize() {
    const problem = byId("cache-problem");
    problem.hidden = true;
    this.isMoving = false;
    this.slider.setAttribute("aria-busy", "true");
    try {
      await postJson("/v1/experts/cache", { size: `${this.slider.value}slots` });
      const props = await getJson("/props");
      showMemory(byId("memory"), props.memory, props.memory_budget);
      await this.look();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    this.slider.removeAttribute("aria-busy");
    // It may have been moved on meanwhile.
    if (!this.isMoving) this.showSize();
  }
}
