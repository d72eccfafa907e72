// Overview: rates, percentiles, transactions, disk.

import { get, send } from "./api.js";
import { h, redraw, svg, table } from "./dom.js";
import * as format from "./format.js";
import * as metrics from "./metrics.js";

const INTERVAL_MS = 2000;
const SAMPLES_MAX = 150; // five minutes
const READ = ["tuff_request_seconds", "tuff_log_fsync_seconds", "tuff_store_fsync_seconds", "tuff_transaction", "tuff_disk_",
  "tuff_oldest_", "tuff_polls_waiting", "tuff_positions ", "tuff_delayed_", "tuff_corrupt_records", "tuff_published_messages_total", "tuff_blocked_reader_seconds", "process_resident_memory_bytes"];
const PUBLISH = /\/(publish|store)$/;
const POLL = /\/(poll|messages)$/;
// What the table shows: a histogram, and the labels of its samples.
const TIMES = [
  ["Publish, until it is acknowledged", "tuff_request_seconds", { operation: PUBLISH, outcome: "2xx" }],
  ["Commit, until it is acknowledged", "tuff_request_seconds", { operation: /^POST \/v1\/transactions\/(\{tx\}\/commit|run)$/, outcome: "2xx" }],
  ["Poll, with what it waits", "tuff_request_seconds", { operation: POLL, outcome: "2xx" }],
  ["Sync of messages", "tuff_store_fsync_seconds", {}],
  ["Sync of the transaction log", "tuff_log_fsync_seconds", {}],
];

export const title = () => "Overview";

export function show(place, _route, { every, signal }) {
  const history = new Map();
  let before = null;
  every(INTERVAL_MS, async () => {
    const text = await (await send("GET", "/metrics", { signal })).text();
    const now = { at: performance.now(), samples: metrics.parse(text, READ) };
    redraw(place, ...drawn(now, before, history));
    before = now;
  });
}

function drawn(now, before, history) {
  const value = (name, labels) => metrics.valueOf(now.samples, name, labels);
  const seconds = before === null ? null : (now.at - before.at) / 1000;
  const perSecond = (name, labels) => {
    const found = seconds === null ? null : (value(name, labels) - (metrics.valueOf(before.samples, name, labels) ?? 0)) / seconds;
    return found === null ? null : Math.max(0, found);
  };
  const rates = [
    ["Messages published", perSecond("tuff_published_messages_total")],
    ["Polls", perSecond("tuff_request_seconds_count", { operation: POLL })],
    ["Commits", perSecond("tuff_transactions_committed_total")],
    ["Refused requests", perSecond("tuff_request_seconds_count", { outcome: /^[45]xx$/ })],
  ];
  const prepared = value("tuff_transactions_prepared");
  const invalid = value("tuff_transactions_invalid");
  const disks = (now.samples.get("tuff_disk_free_bytes") ?? []).map(({ labels, value: free }) =>
    tile(`Free on the disk of ${labels.store}`, format.bytes(free), `of ${format.bytes(value("tuff_disk_size_bytes", labels))}; ${format.bytes(value("tuff_disk_reserve_bytes", labels))} are kept free`));
  return [
    h("h2", {}, "Rates"),
    h("ul", { class: "tiles" }, ...rates.map(([name, found]) => tile(name, format.rate(found), chart(name, found, history)))),
    h("h2", {}, "Times"),
    table("Since the last update, or since the start of the server where nothing happened", ["What", number("Per second"), number("p50"), number("p95"), number("p99"), "Window"],
      TIMES.map(([name, histogram, labels]) => times(name, histogram, labels, now, before, seconds))),
    h("h2", {}, "Transactions"),
    h("ul", { class: "tiles" },
      tile("In progress", format.count(value("tuff_transactions_in_progress")), h("a", { href: "#/transactions" }, "Show them")),
      tile("Age of the oldest one", format.duration(value("tuff_oldest_transaction_seconds"))),
      tile("Prepared", format.count(prepared), prepared ? `the oldest for ${format.duration(value("tuff_oldest_prepared_seconds"))}` : null),
      tile("On the invalid list", format.count(invalid))),
    h("h2", {}, "Messages and disk"),
    h("ul", { class: "tiles" },
      ...disks,
      tile("Readers that wait", format.count(value("tuff_polls_waiting"))),
      tile("Reads refused for a corrupt record", format.count(value("tuff_corrupt_records_total"))),
      tile("Memory of the server", format.bytes(value("process_resident_memory_bytes")))),
  ];
}

const number = (text) => ({ text, kind: "number" });

function times(name, histogram, labels, now, before, seconds) {
  const all = metrics.buckets(now.samples, histogram, labels);
  const newest = before === null ? [] : metrics.since(all, metrics.buckets(before.samples, histogram, labels));
  const isRecent = metrics.total(newest) > 0;
  const found = isRecent ? newest : all;
  const perSecond = seconds === null ? null : metrics.total(newest) / seconds;
  return [name, format.rate(perSecond), ...[0.5, 0.95, 0.99].map((share) => format.duration(metrics.percentile(found, share))),
    metrics.total(all) === 0 ? "nothing yet" : isRecent ? "last update" : "since the start"];
}

function tile(label, value, more = null) {
  return h("li", {}, h("div", { class: "label" }, label), h("div", { class: "value" }, value), more === null ? null : typeof more === "string" ? h("div", { class: "quiet" }, more) : more);
}

function chart(name, value, history) {
  const points = history.get(name) ?? [];
  if (value !== null) points.push(value);
  if (points.length > SAMPLES_MAX) points.shift();
  history.set(name, points);
  const most = Math.max(...points, 1e-9);
  const line = points.map((each, index) => `${(index * 100) / SAMPLES_MAX},${30 - (28 * each) / most}`).join(" ");
  return svg("svg", { class: "chart", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": `${name} in the last five minutes, at most ${format.rate(points.length ? most : null)}` },
    svg("polyline", { points: line }));
}
