// The hit rate over time, one point for each picture that brought new counts.

const POINTS = 240;
// A short run takes a part of the width.
const FEWEST = 60;

export class HitRate {
  constructor(canvas) {
    this.canvas = canvas;
    this.rates = [];
    this.last = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  add({ hits, misses }) {
    const before = this.last;
    this.last = { hits, misses };
    // Counts begin anew when the engine does.
    if (!before || hits < before.hits || misses < before.misses) return;
    const asked = hits + misses - before.hits - before.misses;
    if (asked === 0) return;
    this.rates.push((hits - before.hits) / asked);
    if (this.rates.length > POINTS) this.rates.shift();
    this.draw();
  }

  draw() {
    const scale = devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * scale);
    const height = Math.round(this.canvas.clientHeight * scale);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    context.clearRect(0, 0, width, height);
    const font = 11 * scale;
    const left = 3.2 * font;
    const y = (rate) => font / 2 + (1 - rate) * (height - font);
    context.font = `${font}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const rate of [0, 0.5, 1]) {
      context.fillStyle = style.getPropertyValue("--dim");
      context.fillText(`${100 * rate} %`, 0, y(rate));
      context.fillStyle = style.getPropertyValue("--line");
      context.fillRect(left, Math.round(y(rate)), width - left, Math.max(1, Math.round(scale)));
    }
    this.line(context, (i) => left + ((width - left) * i) / (Math.max(this.rates.length, FEWEST) - 1), y, style.getPropertyValue("--accent"), 2 * scale);
    this.label();
  }

  line(context, x, y, colour, width) {
    context.beginPath();
    this.rates.forEach((rate, i) => context.lineTo(x(i), y(rate)));
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.stroke();
  }

  label() {
    if (!this.rates.length) return;
    const [now, low, high] = [this.rates.at(-1), Math.min(...this.rates), Math.max(...this.rates)].map((r) => Math.round(100 * r));
    this.canvas.setAttribute("aria-label", `Hit rate over time: now ${now} percent, between ${low} and ${high} percent`);
  }
}
