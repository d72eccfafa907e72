// Transactions: those in progress, what each one blocks, the invalid list.

import { ApiError, address, get, post, topicPath } from "./api.js";
import { confirmed, h, redraw, svg, table, terms } from "./dom.js";
import * as format from "./format.js";
import { addressOf } from "./topics.js";

const INTERVAL_MS = 3000;
const SHOWN_COUNT_MAX = 100; // the oldest transactions
const AXIS_COUNT_MAX = 30;
const TOPICS_COUNT_MAX = 30; // of the oldest transactions, that are asked for what blocks them
const INVALIDS_COUNT_MAX = 100;

export const title = () => "Transactions";

export function show(place, { query }, context) {
  const shown = query.get("show");
  const one = h("section", { "aria-label": "One transaction", hidden: shown === null });
  const all = h("div", {});
  place.replaceChildren(one, all);
  if (shown !== null) context.run(() => showOne(one, shown, context));
  context.every(INTERVAL_MS, async () => {
    const [overview, invalid] = await Promise.all([get("/v1/transactions", { signal: context.signal }), get("/v1/transactions/invalid", { signal: context.signal })]);
    const oldest = overview.inProgress.slice(0, SHOWN_COUNT_MAX);
    if (all.firstChild === null) all.replaceChildren(...drawn(overview, oldest, null, invalid));
    const blocked = await blockedTopics(oldest, context.signal);
    redraw(all, ...drawn(overview, oldest, blocked, invalid));
  });
}

/** The topics whose committed readers wait, by the transaction that they wait for. */
async function blockedTopics(transactions, signal) {
  const names = [...new Set(transactions.flatMap((each) => each.topics))].slice(0, TOPICS_COUNT_MAX);
  const found = new Map();
  await Promise.all(names.map(async (name) => {
    const [namespace, topic, part = "0"] = name.split(":");
    try {
      const { blockedBy } = await get(`${topicPath(namespace, `${topic}:${part}`)}/offsets?isolation=committed`, { signal });
      if (blockedBy !== null) found.set(blockedBy, [...(found.get(blockedBy) ?? []), name]);
    } catch (error) {
      if (!(error instanceof ApiError) || ![403, 404].includes(error.status)) throw error;
    }
  }));
  return found;
}

function drawn(overview, oldest, blocked, invalid) {
  const time = (text) => ({ text, kind: "time" });
  const number = (text) => ({ text, kind: "number" });
  const rows = oldest.map((each) => [
    h("a", { href: address("#/transactions", { show: each.transactionId }) }, each.transactionId), each.client,
    each.database === undefined ? each.type : `prepared for ${each.database}`, format.ageOf(each.startedAt), format.time(each.expiresAt),
    topicLinks(each.topics), blocks(each, overview, blocked),
  ]);
  return [
    terms([["Read pointer", overview.readPointer], ["Write pointer", overview.writePointer], ["In progress", format.count(overview.inProgress.length)],
      ["Committing", format.count(overview.committingCount)], ["On the invalid list", format.count(overview.invalidCount)]]),
    h("h2", {}, "Time"),
    axis(oldest.slice(0, AXIS_COUNT_MAX)),
    h("h2", {}, "In progress"),
    table(overview.inProgress.length > oldest.length ? `The ${oldest.length} oldest of ${format.count(overview.inProgress.length)}` : "All, the oldest first",
      ["Transaction", "Client", "Type", number("Age"), time("Expires (UTC)"), "Topics", "What it blocks"], rows, "No transaction is in progress."),
    h("h2", {}, "Invalid list"),
    table(invalid.invalids.length > INVALIDS_COUNT_MAX ? `The first ${INVALIDS_COUNT_MAX} of ${format.count(invalid.invalids.length)} pointers` : "All pointers",
      ["Pointer", "Reason", "Can be pruned"], invalids(invalid), "The list is empty."),
  ];
}

function topicLinks(topics) {
  const shown = topics.slice(0, 5).flatMap((each, index) => {
    const [namespace, ...name] = each.split(":");
    return [index ? ", " : "", h("a", { href: addressOf("messages", namespace, name.join(":")) }, each)];
  });
  return h("span", {}, ...shown, topics.length > 5 ? ` and ${topics.length - 5} more` : "");
}

function blocks(transaction, overview, blocked) {
  if (blocked === null) return "…"; // not known yet
  const topics = blocked.get(transaction.transactionId) ?? [];
  const found = topics.length ? [`committed readers of ${topics.join(", ")}`] : [];
  if (overview.oldestInProgress === transaction.transactionId) found.push("removal of old versions: it is the oldest");
  return found.join("; ") || "nothing";
}

function invalids({ invalids: pointers, reasons, prunable }) {
  const reasonOf = new Map(Object.entries(reasons).flatMap(([reason, list]) => list.map((each) => [each, reason])));
  const mayGo = new Set(prunable);
  return pointers.slice(0, INVALIDS_COUNT_MAX).map((each) => [each, (reasonOf.get(each) ?? "").replaceAll("_", " "), mayGo.has(each) ? "yes" : "no: messages carry it"]);
}

/** A bar for each transaction, from its start until now. */
function axis(transactions) {
  if (!transactions.length) return h("p", { class: "quiet" }, "No transaction is in progress.");
  const now = Date.now();
  const start = Math.min(now - 1000, ...transactions.map((each) => each.startedAt));
  const at = (ms) => 150 + (830 * (ms - start)) / (now - start);
  const height = 16 * transactions.length + 22;
  const bars = transactions.flatMap((each, index) => [
    svg("text", { x: 145, y: 16 * index + 12, "text-anchor": "end" }, each.client.slice(0, 20)),
    svg("rect", { x: at(each.startedAt), y: 16 * index + 3, width: Math.max(2, at(now) - at(each.startedAt)), height: 11, class: each.database === undefined ? null : "prepared" },
      svg("title", {}, `${each.transactionId} of ${each.client}, for ${format.ageOf(each.startedAt)}`)),
  ]);
  return svg("svg", { class: "axis", viewBox: `0 0 1000 ${height}`, role: "img", "aria-label": `Transactions from ${format.time(start)} until now, the oldest first` }, ...bars,
    svg("line", { x1: 150, x2: 980, y1: height - 17, y2: height - 17 }),
    svg("text", { x: 150, y: height - 4 }, `${format.ageOf(start)} ago`),
    svg("text", { x: 980, y: height - 4, "text-anchor": "end" }, "now"));
}

async function showOne(place, id, context) {
  const path = `/v1/transactions/${encodeURIComponent(id)}`;
  const found = await get(path, { signal: context.signal });
  const isOpen = ["in_progress", "committing", "prepared"].includes(found.state);
  const changes = isOpen ? await get(`${path}/changes`, { signal: context.signal }).catch((error) => {
    if (error instanceof ApiError && error.status) return null; // not allowed, or ended meanwhile
    throw error;
  }) : null;
  const end = (action, consequence) => h("button", { type: "button", class: "danger", click: () => context.run(async () => {
    if (!(await confirmed(`${consequence} Transaction ${id} of ${found.client}.`, action))) return;
    const { state } = await post(`${path}/${action.toLowerCase()}`, undefined, { signal: context.signal });
    await showOne(place, id, context);
    place.append(h("p", { role: "status" }, `The transaction is ${state}.`));
  }) }, action);
  place.replaceChildren(
    h("h2", {}, `Transaction ${found.transactionId}`),
    terms([["State", found.reason ? `${found.state}: ${found.reason}` : found.state], ["Client", found.client], ["Type", found.type],
      ["Started", format.time(found.startedAt)], ["Expires", format.time(found.expiresAt)],
      ...(found.database === undefined ? [] : [["Decided by the database", found.database]]),
      ["Topics", topicLinks(found.topics ?? [])],
      ...(changes?.conflictingTransaction ? [["Refused for a conflict with", `${changes.conflictingTransaction}, on the key ${format.preview(changes.conflictingKey)}`]] : []),
      ["Conflict keys", changes === null ? "not known" : changes.count ? `${format.count(changes.count)}: ${changes.changes.slice(0, 50).map((each) => format.preview(each, 60)).join(", ")}${changes.count > 50 ? "…" : ""}` : "none named yet"]]),
    isOpen && found.state !== "prepared" ? h("div", { class: "controls" },
      end("Abort", "Abort says that the other writes of the transaction were undone."),
      end("Invalidate", "Invalidate hides the writes of the transaction from all later readers.")) : "",
    found.state === "prepared" ? h("p", {}, "Its database decides how it ends: `tuff sql resolve`.") : "");
}
