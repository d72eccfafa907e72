// Snapshot files: their content, what a reader in one sees of a message, and the difference of two.

import { get, post, topicPath } from "./api.js";
import { h, labelled, select, table, terms } from "./dom.js";
import { explanationIn } from "./explain.js";
import * as format from "./format.js";

const POINTERS_COUNT_MAX = 200; // of a list

export const title = () => "Snapshots";

export function show(place, _route, context) {
  context.run(() => list(place, context));
}

async function list(place, context) {
  const { files } = await get("/v1/transactions/snapshots", { signal: context.signal });
  const whole = files.filter((each) => each.damage === null);
  const content = h("div", {});
  const view = { first: whole[0]?.file ?? "", second: "", content };
  const redraw = () => context.run(() => draw(view, context));
  const names = whole.map((each) => [each.file, `${each.file} (${format.time(each.createdAt)})`]);
  place.replaceChildren(
    h("button", { type: "button", click: () => context.run(async () => { await post("/v1/transactions/snapshot"); await list(place, context); }) }, "Write a snapshot file now"),
    table("Snapshot files, the newest first", ["File", { text: "Created (UTC)", kind: "time" }, { text: "Size", kind: "number" }, { text: "Last edit", kind: "number" }, "Damage"],
      files.map((each) => [each.file, format.time(each.createdAt), format.bytes(each.bytes), each.lsn === null ? "–" : String(each.lsn), each.damage ?? "none"]), "There is no snapshot file yet."),
    ...(whole.length ? [h("div", { class: "controls" },
      labelled("Show", select(names, view.first, (value) => { view.first = value; redraw(); })),
      labelled("Compare with", select([["", "nothing"], ...names], "", (value) => { view.second = value; redraw(); })))] : []),
    content);
  if (whole.length) await draw(view, context);
}

async function draw({ first, second, content }, context) {
  const load = (name) => get(`/v1/transactions/snapshots/${encodeURIComponent(name)}`, { signal: context.signal });
  const [one, other] = await Promise.all([load(first), second ? load(second) : null]);
  content.replaceChildren(...(other === null ? described(one) : difference(one, other)), ...question(one, context));
}

function described(one) {
  return [
    h("h2", {}, one.file),
    terms([["Created", format.time(one.createdAt)], ["Read pointer", one.readPointer], ["Write pointer", one.writePointer],
      ["In progress", pointers(one.inProgress)], ["Invalid", pointers(one.invalids)], ["Outcomes remembered", format.count(one.outcomeCount)], ["Sinks", format.count(one.sinkCount)]]),
    table("Open transactions", ["Transaction", "Client", "State", "Type", { text: "Started (UTC)", kind: "time" }, { text: "Expires (UTC)", kind: "time" }],
      one.open.slice(0, POINTERS_COUNT_MAX).map((each) => [each.transactionId, each.client, each.state, each.type, format.time(each.startedAt), format.time(each.expiresAt)])),
  ];
}

function difference(one, other) {
  const [before, after] = BigInt(one.lsn) <= BigInt(other.lsn) ? [one, other] : [other, one];
  const lists = [["In progress", "inProgress"], ["Invalid", "invalids"]];
  return [
    h("h2", {}, `From ${before.file} to ${after.file}`),
    terms([
      ["Read pointer", before.readPointer === after.readPointer ? `${after.readPointer}, unchanged` : `${before.readPointer} to ${after.readPointer}`],
      ["Edits between them", format.count(after.lsn - before.lsn)],
      ...lists.flatMap(([name, member]) => [[`${name}: added`, pointers(without(after[member], before[member]))], [`${name}: removed`, pointers(without(before[member], after[member]))]])]),
  ];
}

function without(list, other) {
  const gone = new Set(other);
  return list.filter((each) => !gone.has(each));
}

function pointers(list) {
  if (!list.length) return "none";
  return `${format.count(list.length)}: ${list.slice(0, POINTERS_COUNT_MAX).join(", ")}${list.length > POINTERS_COUNT_MAX ? " …" : ""}`;
}

function question(snapshot, context) {
  const topic = h("input", { required: true, size: "30", placeholder: "namespace:topic", pattern: "[^:]+:.+" });
  const id = h("input", { required: true, size: "44", pattern: "[0-9a-fA-F]{40}" });
  const answer = h("div", { role: "status" });
  return [
    h("h2", {}, "What a reader in this snapshot sees"),
    h("form", { submit: (event) => {
      event.preventDefault();
      const [namespace, ...name] = topic.value.trim().split(":");
      context.run(async () => answer.replaceChildren(await explanationIn(snapshot, topicPath(namespace, name.join(":")), id.value.trim().toLowerCase(), context.signal)));
    } }, labelled("Topic", topic), labelled("Message id", id), h("button", {}, "Is it visible?")),
    answer,
  ];
}
