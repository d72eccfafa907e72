// Messages of one partition: with the state of each row, from any time on, filtered, live.

import { ApiError, address, get, send, topicPath } from "./api.js";
import { h, labelled, select, table, terms } from "./dom.js";
import { explanation, question } from "./explain.js";
import * as format from "./format.js";
import { FORMS, hasField, payloadText } from "./payload.js";
import { addressOf } from "./topics.js";

const PAGE_COUNT = 50;
const TAIL_COUNT_MAX = 200; // messages that a live view keeps
const TAIL_WAIT_S = 20;
const BYTES_MAX = 8 * 1024 * 1024; // of the replies that a page holds
const SEARCHED_COUNT_MAX = 5000; // messages that one search for a JSON field reads
const SCHEMA_2 = { Accept: "application/json; schema=2" };

const KINDS = { committed: "good", in_progress: "warn", invalid: "bad", rolled_back: "bad", expired: "quiet", damaged: "bad", delayed: "warn", unknown: "quiet" };

export const title = ({ parts }) => (parts.length ? `Messages of ${parts.join(":")}` : "Messages");

export function show(place, route, context) {
  const [namespace, name] = route.parts;
  if (name === undefined) showChoice(place, context);
  else new View(place, namespace, name, route.query, context).begin();
}

function showChoice(place, context) {
  const input = h("input", { required: true, size: "40", placeholder: "namespace:topic", pattern: "[^:]+:.+" });
  place.replaceChildren(
    h("form", { submit: (event) => {
      event.preventDefault();
      const [namespace, ...rest] = input.value.trim().split(":");
      location.hash = addressOf("messages", namespace, rest.join(":"));
    } }, labelled("Topic, as namespace:name or namespace:name:partition", input), h("button", {}, "Show")),
    h("p", {}, "Or choose one of the ", h("a", { href: "#/topics" }, "topics"), "."),
    ...question("", context));
}

class View {
  constructor(place, namespace, name, query, context) {
    Object.assign(this, { place, namespace, name, query, context });
    this.path = topicPath(namespace, name);
    this.form = sessionStorage.getItem("tuff-form") ?? "auto";
    this.schema = sessionStorage.getItem(`tuff-schema ${namespace}:${name}`) ?? "";
    this.rows = h("div", {});
    this.note = h("p", { role: "status", class: "quiet" });
    this.isLive = false;
  }

  begin() {
    this.context.run(async () => {
      try {
        this.bounds = await get(`${this.path}/offsets`, { signal: this.context.signal });
      } catch (error) {
        if (error instanceof ApiError && error.code === "partition_required") return this.showPartitions();
        throw error;
      }
      this.place.replaceChildren(this.tabs(), ...(this.query.get("view") === "delayed" ? [] : this.controls()), this.note, this.rows,
        ...question(`${this.namespace}:${this.name}`, this.context));
      await this.load();
    });
  }

  async showPartitions() {
    const topic = await get(this.path, { signal: this.context.signal });
    const numbers = [...topic.partitions, ...topic.retired].sort((one, other) => one - other);
    this.place.replaceChildren(h("p", {}, "The topic has several partitions. Choose one:"),
      h("ul", {}, ...numbers.map((number) => h("li", {}, h("a", { href: addressOf("messages", this.namespace, `${this.name}:${number}`) }, `${this.name}:${number}`)))));
  }

  link(parameters) {
    return address(addressOf("messages", this.namespace, this.name), parameters);
  }

  go(parameters) {
    const kept = { tags: this.query.get("tags"), field: this.query.get("field"), value: this.query.get("value") };
    const target = this.link({ ...kept, ...parameters });
    if (location.hash === target) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = target;
  }

  tabs() {
    const isDelayed = this.query.get("view") === "delayed";
    const link = (text, view, isCurrent) => h("a", { href: this.link({ view }), "aria-current": isCurrent ? "page" : null }, text);
    return h("p", {}, link("Messages", null, !isDelayed), " · ", link("Delayed", "delayed", isDelayed), " · ",
      h("a", { href: addressOf("topic", this.namespace, this.name.split(":")[0]) }, "Topic"));
  }

  controls() {
    const tags = h("input", { value: this.query.get("tags") ?? "", size: "16", placeholder: "a,b|c" });
    const field = h("input", { value: this.query.get("field") ?? "", size: "14", placeholder: "order.id" });
    const value = h("input", { value: this.query.get("value") ?? "", size: "14" });
    const jump = h("input", { size: "42", placeholder: "2026-01-31T12:00:00Z, or an id" });
    const live = h("button", { type: "button", "aria-pressed": "false", click: () => this.toggleLive(live) }, "Live tail");
    return [
      h("div", { class: "controls" },
        h("a", { href: this.link({}) }, "Newest"), h("a", { href: this.link({ from: "earliest" }) }, "Oldest"), live,
        ...this.slider()),
      h("form", { submit: (event) => { event.preventDefault(); this.go({ from: jump.value.trim() }); } },
        labelled("Message id, or time", jump), h("button", {}, "Jump")),
      h("form", { submit: (event) => { event.preventDefault(); this.go({ from: this.query.get("from") ?? "earliest", tags: tags.value.trim(), field: field.value.trim(), value: value.value }); } },
        labelled("Tags", tags), labelled("JSON field", field), labelled("has the value", value), h("button", {}, "Filter")),
      h("div", { class: "controls" }, labelled("Payloads as", select(FORMS, this.form, (form) => {
        this.form = form;
        sessionStorage.setItem("tuff-form", form);
        this.schemaBox.hidden = form !== "avro";
        this.draw();
      }))),
      this.schemaBox = h("div", { hidden: this.form !== "avro" }, labelled("Avro schema (JSON), for bare data",
        h("textarea", { spellcheck: "false", value: this.schema, change: (event) => {
          this.schema = event.target.value;
          sessionStorage.setItem(`tuff-schema ${this.namespace}:${this.name}`, this.schema);
          this.draw();
        } }))),
    ];
  }

  slider() {
    const { earliest, end } = this.bounds;
    if (earliest === null || end === null) return [];
    const [min, max] = [format.timeOfId(earliest), format.timeOfId(end)];
    const from = this.query.get("from") ?? "";
    const at = /^[0-9a-f]{40}$/i.test(from) ? format.timeOfId(from) : /^\d+$/.test(from) ? Number(from) : from === "earliest" ? min : Date.parse(from) || max;
    const shown = h("span", { class: "quiet" }, format.time(at));
    const slider = h("input", { type: "range", min, max, step: Math.max(1, Math.floor((max - min) / 1000)), value: at,
      input: () => { shown.textContent = format.time(Number(slider.value)); slider.setAttribute("aria-valuetext", shown.textContent); },
      change: () => this.go({ from: slider.value }) });
    slider.setAttribute("aria-valuetext", shown.textContent);
    return [labelled("Time", slider), shown];
  }

  async load() {
    if (this.query.get("view") === "delayed") return this.loadDelayed();
    const from = this.query.get("from");
    this.filters = { tags: this.query.get("tags") ?? "", field: this.query.get("field") ?? "", value: this.query.get("value") ?? "" };
    if (this.filters.tags || this.filters.field) return this.search(from ?? "earliest");
    const isBackwards = from === null;
    const bound = isBackwards ? this.query.get("until") : from === "earliest" ? null : from;
    const rows = await get(address(`${this.path}/rows`, { order: isBackwards ? "descending" : "ascending", from: bound, limit: PAGE_COUNT }), { signal: this.context.signal });
    const found = isBackwards ? rows.rows.toReversed() : rows.rows;
    this.states = new Map(found.map((each) => [each.id.slice(0, 20), each]));
    const messages = found.length ? await this.messagesOf(found) : [];
    this.shown = merged(found, messages);
    this.older = isBackwards ? rows.next : null;
    this.newer = isBackwards ? null : rows.next;
    this.say(found.length ? "" : "There is no message from here on.");
    this.draw();
    return undefined;
  }

  /** One read: the messages, where the next one starts, and whether nothing is left. It passes
   * over a corrupt record. */
  async read(parameters, signal = this.context.signal) {
    let reply;
    try {
      reply = await send("GET", address(`${this.path}/messages`, parameters), { headers: SCHEMA_2, signal });
    } catch (error) {
      if (error.code !== "damaged_record") throw error;
      const { next } = error.problem;
      return { messages: [], next, isCaughtUp: next === null, size: 0 };
    }
    const text = await reply.text();
    return { messages: JSON.parse(text), next: reply.headers.get("Tuff-Next"), isCaughtUp: reply.headers.get("Tuff-Caught-Up") === "true", size: text.length };
  }

  /** The messages of these rows, up to a size. */
  async messagesOf(rows) {
    const through = `${rows.at(-1).id.slice(0, 20)}${"f".repeat(20)}`;
    const messages = [];
    let [from, inclusive, size] = [rows[0].id, true, 0];
    for (;;) {
      const found = await this.read({ from, inclusive, through, limit: 1000 });
      messages.push(...found.messages);
      size += found.size;
      if (found.isCaughtUp || messages.length >= 1000 || size > BYTES_MAX) return messages;
      [from, inclusive] = [found.next, false];
    }
  }

  /** Messages that the filters select, from a place on. */
  async search(from) {
    const { tags, field, value } = this.filters;
    const found = [];
    let [next, inclusive, looked, caughtUp] = [from, true, 0, false];
    while (found.length < PAGE_COUNT && looked < SEARCHED_COUNT_MAX && !caughtUp) {
      const page = await this.read({ from: next, inclusive, tags, limit: field ? 1000 : PAGE_COUNT });
      looked += page.messages.length;
      for (const each of page.messages) if (!field || hasField(each.payload, field, value)) found.push(each);
      [next, inclusive, caughtUp] = [page.next, false, page.isCaughtUp];
      this.say(`Looked at ${format.counted(looked, "message")}, found ${found.length}…`);
    }
    this.states = await this.statesOf(found);
    this.shown = found.map((message) => ({ message, row: this.states.get(message.id.slice(0, 20)) ?? null }));
    [this.older, this.newer] = [null, caughtUp ? null : next];
    this.say(`Looked at ${format.counted(looked, "message")}, found ${found.length}.${caughtUp ? " That is the end of the topic." : ""}`);
    this.draw();
  }

  async statesOf(messages) {
    const ids = [...new Set(messages.map((each) => `${each.id.slice(0, 20)}${"0".repeat(20)}`))];
    const pages = await Promise.all(ids.map((id) => get(address(`${this.path}/rows`, { from: id, limit: 1 }), { signal: this.context.signal })));
    return new Map(pages.flatMap((each) => each.rows).map((each) => [each.id.slice(0, 20), each]));
  }

  async loadDelayed() {
    const after = this.query.get("after");
    const { delayed } = await get(address(`${this.path}/delayed`, { payloads: true, limit: PAGE_COUNT, after }), { signal: this.context.signal });
    const rows = delayed.map((each) => [state("delayed"), format.time(each.due), each.key === undefined ? "" : format.preview(each.key), (each.tags ?? []).join(", "), format.bytes(each.size), format.preview(each.payload)]);
    this.rows.replaceChildren(
      table("Messages that are not due yet, in the order of their due times", ["State", { text: "Due (UTC)", kind: "time" }, "Key", "Tags", { text: "Size", kind: "number" }, { text: "Payload", kind: "wide" }], rows),
      delayed.length === PAGE_COUNT ? h("p", {}, h("a", { href: this.link({ view: "delayed", after: delayed.at(-1).id }) }, "Next page")) : "");
  }

  toggleLive(button) {
    this.isLive = !this.isLive;
    button.setAttribute("aria-pressed", String(this.isLive));
    button.textContent = this.isLive ? "Stop the live tail" : "Live tail";
    if (this.isLive) this.context.run(() => this.tail());
    else this.stopTail?.abort();
  }

  async tail() {
    this.stopTail = new AbortController();
    const signal = AbortSignal.any([this.context.signal, this.stopTail.signal]);
    let [from, inclusive] = ["latest", true];
    this.say("Waiting for messages…");
    while (this.isLive && !signal.aborted) {
      let page;
      try {
        page = await this.read({ from, inclusive, wait: TAIL_WAIT_S, limit: TAIL_COUNT_MAX, tags: this.filters.tags }, signal);
      } catch (error) {
        if (error.name === "AbortError") break;
        throw error;
      }
      const { field, value } = this.filters;
      const messages = page.messages.filter((each) => !field || hasField(each.payload, field, value));
      [from, inclusive] = [page.next, false];
      if (!messages.length) continue;
      const states = await this.statesOf(messages.slice(-PAGE_COUNT));
      this.shown = newest([...this.shown, ...messages.map((message) => ({ message, row: states.get(message.id.slice(0, 20)) ?? null }))]);
      this.older = this.newer = null;
      this.say(`Live: ${format.count(messages.length)} more at ${format.time(Date.now())}.`);
      this.draw();
    }
    this.say("The live tail has stopped.");
  }

  say(text) {
    this.note.textContent = text;
  }

  draw() {
    if (this.shown === undefined) return;
    const columns = ["State", { text: "Time (UTC)", kind: "time" }, "Key", "Tags", { text: "Size", kind: "number" }, { text: "Payload", kind: "wide" }, "Details"];
    this.rows.replaceChildren(
      table("Messages in their order, with the state of their rows", columns, this.shown.flatMap((each) => this.lines(each)), "No message."),
      h("p", { class: "controls" },
        this.older ? h("a", { href: this.link({ until: this.older }) }, "Older page") : null,
        this.newer ? h("a", { href: this.link({ ...this.filters, from: this.newer }) }, "Next page") : null));
  }

  lines({ message, row }) {
    const details = h("tr", { hidden: true }, h("td", { colspan: "7" }));
    const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-label": `Details of the message at ${format.time(row?.timestamp ?? message.timestamp)}`, click: () => {
      details.hidden = !details.hidden;
      button.setAttribute("aria-expanded", String(!details.hidden));
      if (!details.hidden) details.firstChild.replaceChildren(...this.details(message, row));
    } }, "details");
    const line = h("tr", {},
      h("td", {}, state(row?.state ?? "unknown")), h("td", { class: "time" }, format.time(row?.timestamp ?? message.timestamp)),
      h("td", {}, message?.key ? format.preview(message.key, 40) : ""), h("td", {}, (message?.tags ?? []).join(", ")),
      h("td", { class: "number" }, format.bytes(row?.size)), h("td", { class: "wide code" }, message === null ? nothing(row) : format.preview(message.payload)), h("td", {}, button));
    return [line, details];
  }

  details(message, row) {
    const id = message?.id ?? row.id;
    const explained = h("div", {});
    return [
      terms([["Message id", h("code", {}, id)],
        ...(row === null ? [] : [["Expires", format.time(row.expiresAt)],
          ["Write pointer", row.writePointer ?? "none: published without a transaction"],
          ...(row.transactionId === null ? [] : [["Transaction", h("a", { href: address("#/transactions", { show: row.transactionId }) }, row.transactionId)]]),
          ...(row.messageCount === 1 ? [] : [["Messages of the row", format.count(row.messageCount)]])]),
        ...Object.entries(message?.headers ?? {}).map(([name, value]) => [`Header ${name}`, Array.isArray(value) ? value.map((each) => format.preview(each)).join(", ") : format.preview(value)])]),
      message === null ? h("p", {}, nothing(row)) : h("pre", { tabindex: "0", "aria-label": "Payload" }, payloadText(message.payload, this.form, this.schema)),
      h("button", { type: "button", click: () => this.context.run(async () => explained.replaceChildren(...await explanation(this.path, id, this.context.signal))) }, "Why is it visible or not?"),
      explained,
    ];
  }
}

function nothing(row) {
  if (row.state === "expired") return "expired: readers no longer receive it";
  if (row.state === "damaged") return "the record is corrupt";
  return row.messageCount ? "not loaded: the page has too many bytes; jump to its id" : "no message";
}

/** The newest lines that a live view keeps. */
function newest(lines) {
  let size = 0;
  let first = lines.length;
  while (first > 0 && lines.length - first < TAIL_COUNT_MAX && size < BYTES_MAX) {
    first -= 1;
    const { payload } = lines[first].message ?? {};
    size += (payload?.base64 ?? payload ?? "").length;
  }
  return lines.slice(first);
}

/** Rows with their messages; a row without one, as an expired row, has null. */
function merged(rows, messages) {
  const byRow = Map.groupBy(messages, (each) => each.id.slice(0, 20));
  return rows.flatMap((row) => (byRow.get(row.id.slice(0, 20)) ?? [null]).map((message) => ({ message, row })));
}

export function state(name) {
  return h("span", { class: `state ${KINDS[name] ?? "quiet"}` }, name.replace("_", " "));
}
