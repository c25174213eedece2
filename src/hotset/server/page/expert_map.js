// The map on its canvas: a row for each layer, a column for each expert; and the cell that the pointer or the keyboard is at.

// A pick shines for so many pictures, each weaker than the one before.
const SHINE = 3;
// Cells are drawn in whole pixels of the screen, as large as fits between these; CSS pixels.
const SMALLEST = 3;
const LARGEST = 18;
const ROW_LARGEST = 14;
const COLOURS = ["cold", "hot", "absent", "hit", "miss", "mark"];

export class ExpertMap {
  constructor(canvas, readout) {
    this.canvas = canvas;
    this.readout = readout;
    this.picture = null;
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.moveTo(null));
    canvas.addEventListener("blur", () => this.moveTo(null));
    canvas.addEventListener("keydown", (event) => this.walk(event));
  }

  // A picture as GET /v1/experts gives it. What was picked since the last one was a hit if it was resident then.
  show(picture) {
    const { n_layers: rows, n_experts: columns } = picture;
    const before = this.resident;
    if (!before || before.length !== rows * columns) this.shine = new Int8Array(rows * columns);
    this.resident = new Uint8Array(rows * columns);
    this.shine.forEach((left, i) => (this.shine[i] = left - Math.sign(left)));
    picture.layers.forEach((layer, row) => {
      for (const expert of layer.resident) this.resident[row * columns + expert] = 1;
      for (const expert of before ? layer.picked : []) {
        const i = row * columns + expert;
        this.shine[i] = before[i] ? SHINE : -SHINE;
      }
    });
    this.picture = picture;
    this.draw();
    if (this.cursor) this.tell();
  }

  // Nothing is picked any more.
  calm() {
    this.shine?.fill(0);
    this.draw();
  }

  draw() {
    if (!this.picture?.n_layers) return;
    const { n_layers: rows, n_experts: columns, layers } = this.picture;
    const scale = devicePixelRatio || 1;
    const room = this.canvas.parentElement.clientWidth * scale;
    const width = Math.floor(Math.min(Math.max(room / columns, SMALLEST * scale), LARGEST * scale));
    const height = Math.floor(Math.min(Math.max(width, SMALLEST * scale), ROW_LARGEST * scale));
    this.cell = { width, height, scale };
    this.size(width * columns, height * rows, scale);
    const context = this.canvas.getContext("2d");
    const colours = this.colours();
    const gap = width >= 5 ? 1 : 0;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    layers.forEach((layer, row) => {
      for (let column = 0; column < columns; column += 1) {
        const i = row * columns + column;
        const x = column * width;
        const y = row * height;
        if (this.resident[i]) {
          // Most experts are picked seldom: the square root spreads them out.
          context.fillStyle = colours.ramp[Math.round(Math.sqrt(layer.heat[column] / 100) * (colours.ramp.length - 1))];
          context.fillRect(x, y, width - gap, height - gap);
        } else {
          const inset = Math.floor(Math.min(width, height) / 3);
          context.fillStyle = colours.absent;
          context.fillRect(x + inset, y + inset, width - 2 * inset - gap, height - 2 * inset - gap);
        }
        if (this.shine[i]) {
          context.globalAlpha = Math.abs(this.shine[i]) / SHINE;
          context.fillStyle = this.shine[i] > 0 ? colours.hit : colours.miss;
          frame(context, x, y, width - gap, height - gap);
          context.globalAlpha = 1;
        }
      }
    });
    if (this.cursor) {
      context.strokeStyle = colours.mark;
      context.lineWidth = Math.ceil(2 * scale);
      context.strokeRect(this.cursor.column * width, this.cursor.row * height, width - gap, height - gap);
    }
  }

  size(width, height, scale) {
    if (this.canvas.width === width && this.canvas.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.width = `${width / scale}px`;
    this.canvas.style.height = `${height / scale}px`;
  }

  // The theme's colours, and a ramp from cold to hot.
  colours() {
    const style = getComputedStyle(this.canvas);
    const found = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    found.ramp = ramp(found.cold, found.hot);
    return found;
  }

  point(event) {
    if (!this.cell) return;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) * this.cell.scale) / this.cell.width);
    const row = Math.floor(((event.clientY - box.top) * this.cell.scale) / this.cell.height);
    this.moveTo({ row, column });
  }

  walk(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || !this.picture) return;
    event.preventDefault();
    const { row, column } = this.cursor ?? { row: -step[0], column: -step[1] };
    this.moveTo({ row: Math.max(row + step[0], 0), column: Math.max(column + step[1], 0) });
  }

  moveTo(cell) {
    if (cell && this.picture) {
      const row = Math.min(cell.row, this.picture.n_layers - 1);
      const column = Math.min(cell.column, this.picture.n_experts - 1);
      this.cursor = row < 0 || column < 0 ? null : { row, column };
    } else {
      this.cursor = null;
    }
    this.draw();
    if (this.cursor) this.tell();
  }

  tell() {
    const { row, column } = this.cursor;
    const isResident = this.resident[row * this.picture.n_experts + column];
    this.readout.textContent = `Layer ${row}, expert ${column}: ${isResident ? "resident" : "not resident"}, heat ${this.picture.layers[row].heat[column]} %`;
  }
}

// A frame around a cell, or all of a small one.
function frame(context, x, y, width, height) {
  const thick = Math.ceil(width / 7);
  if (width < 8 || height < 8) {
    context.fillRect(x, y, width, height);
    return;
  }
  context.fillRect(x, y, width, thick);
  context.fillRect(x, y + height - thick, width, thick);
  context.fillRect(x, y + thick, thick, height - 2 * thick);
  context.fillRect(x + width - thick, y + thick, thick, height - 2 * thick);
}

// 32 colours between two that are written as #rrggbb.
function ramp(from, to) {
  const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return Array.from({ length: 32 }, (_, i) => `rgb(${a.map((x, c) => Math.round(x + ((b[c] - x) * i) / 31)).join(" ")})`);
}
