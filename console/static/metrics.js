// Reads Prometheus text, and rates and percentiles of histograms between two scrapes.

const SAMPLE = /^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"/g;

/** The samples whose names begin with one of `prefixes`, by name: `[{labels, value}]`. */
export function parse(text, prefixes) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!prefixes.some((each) => line.startsWith(each))) continue;
    const sample = SAMPLE.exec(line);
    if (sample === null) continue;
    const labels = {};
    for (const [, name, value] of (sample[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!found.has(sample[1])) found.set(sample[1], []);
    found.get(sample[1]).push({ labels, value: Number(sample[3]) });
  }
  return found;
}

export function valueOf(samples, name, labels = {}) {
  const found = (samples.get(name) ?? []).filter((each) => matches(each.labels, labels));
  return found.length ? found.reduce((sum, each) => sum + each.value, 0) : null;
}

function matches(labels, wanted) {
  return Object.entries(wanted).every(([name, value]) => (value instanceof RegExp ? value.test(labels[name] ?? "") : labels[name] === value));
}

/** The cumulative buckets of a histogram, summed over all that match: `[[bound, count]]`. */
export function buckets(samples, name, labels = {}) {
  const sums = new Map();
  for (const each of samples.get(`${name}_bucket`) ?? []) {
    if (!matches(each.labels, labels)) continue;
    const bound = each.labels.le === "+Inf" ? Infinity : Number(each.labels.le);
    sums.set(bound, (sums.get(bound) ?? 0) + each.value);
  }
  return [...sums].sort(([one], [other]) => one - other);
}

/** What was observed since `before`, as buckets. */
export function since(now, before) {
  const earlier = new Map(before);
  return now.map(([bound, value]) => [bound, value - (earlier.get(bound) ?? 0)]);
}

export const total = (found) => (found.length ? found[found.length - 1][1] : 0);

/** A percentile, interpolated within its bucket; null without an observation. */
export function percentile(found, share) {
  const all = total(found);
  if (!(all > 0)) return null;
  const rank = share * all;
  let lower = 0;
  let passed = 0;
  for (const [bound, value] of found) {
    if (value >= rank) {
      if (bound === Infinity) return lower;
      return lower + (bound - lower) * ((rank - passed) / Math.max(value - passed, 1e-9));
    }
    lower = bound;
    passed = value;
  }
  return lower;
}
