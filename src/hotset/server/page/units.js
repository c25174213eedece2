// Numbers as people read them.

const STEPS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function bytes(n) {
  const [size, unit] = STEPS.find(([least]) => n >= least) ?? [1, "B"];
  const value = n / size;
  return `${value.toFixed(unit === "B" || value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
}

export function count(n) {
  return n.toLocaleString("en");
}

export function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(1)} %`;
}
