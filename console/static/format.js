// Numbers, times and payloads as text.

export const count = (value) => (value === null || value === undefined ? "unknown" : Math.round(value).toLocaleString("en"));

/** A count, or "at least" so many. */
export const atLeast = (value, isLowerBound) => (value === null ? "–" : `${isLowerBound ? "at least " : ""}${count(value)}`);

/** `1 topic`, `2 topics`. */
export const counted = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined || Number.isNaN(perSecond)) return "–";
  return `${perSecond >= 100 ? count(perSecond) : perSecond.toFixed(perSecond >= 10 ? 1 : 2)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < units.length - 1) { left /= 1024; unit += 1; }
  return `${unit ? left.toFixed(1) : left} ${units[unit]}`;
}

/** Seconds, in the unit that fits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

/** A time in ms since the epoch, in UTC with milliseconds. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace("Z", "");
}

export const timeOfId = (id) => Number.parseInt(id.slice(0, 16), 16);

export const ageOf = (ms, now = Date.now()) => (ms === null || ms === undefined ? "–" : duration(Math.max(0, now - ms) / 1000));

/** The bytes of a payload in its JSON form. */
export function payloadBytes(payload) {
  if (payload === null || payload === undefined) return new Uint8Array();
  if (typeof payload === "string") return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload.base64), (each) => each.charCodeAt(0));
}

export function hex(data, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const digits = row.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  if (data.length > most) lines.push(`… ${data.length - most} more bytes`);
  return lines.join("\n");
}

/** One line of a payload, for a table. */
export function preview(payload, most = 160) {
  if (payload === null || payload === undefined) return "";
  const text = typeof payload === "string" ? payload : `base64 ${payload.base64}`;
  const line = text.slice(0, most + 1).replace(/[\u0000-\u001f\u007f]+/g, " ");
  return line.length > most ? `${line.slice(0, most)}…` : line;
}
