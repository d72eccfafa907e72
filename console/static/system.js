// System: health, settings with their source, checks of the stored data, an explorer of the API.

import { get, send } from "./api.js";
import { confirmed, h, labelled, redraw, select, table, terms } from "./dom.js";
import * as format from "./format.js";

const INTERVAL_MS = 5000;
const SHOWN_CHARACTERS_MAX = 65536; // of a reply

export const title = () => "System";

export function show(place, _route, context) {
  const [health, settings, explorer] = [h("div", {}), h("div", {}), h("div", {})];
  place.replaceChildren(h("h2", {}, "Health"), health, h("h2", {}, "Settings"), settings, h("h2", {}, "Checks of the stored data"), ...fsck(), h("h2", {}, "API explorer"), explorer);
  context.every(INTERVAL_MS, async () => redraw(health, drawnHealth(await get("/health/ready", { refusals: false, signal: context.signal }))));
  context.run(async () => settings.replaceChildren(...drawnSettings((await get("/v1/settings", { signal: context.signal })).settings)));
  context.run(async () => new Explorer(explorer, await get("/openapi.json", { signal: context.signal }), context).draw());
}

const KINDS = { ok: "good", degraded: "warn", down: "bad" };

function drawnHealth({ checks = {} }) {
  return table("Each part of the server", ["Part", "State", { text: "Reason", kind: "wide" }],
    Object.entries(checks).map(([name, check]) => [name, h("span", { class: `state ${KINDS[check.status] ?? ""}` }, check.status), check.detail || "–"]));
}

function drawnSettings(settings) {
  const list = h("div", {});
  const draw = (onlySet) => list.replaceChildren(table(onlySet ? "Settings that are not the default" : "All settings", ["Setting", { text: "Value", kind: "wide code" }, { text: "Default", kind: "wide code" }, "Source"],
    settings.filter((each) => !onlySet || JSON.stringify(each.value) !== JSON.stringify(each.default)).map((each) => [each.name, JSON.stringify(each.value), JSON.stringify(each.default), each.source])));
  const box = h("input", { type: "checkbox", checked: true, change: () => draw(box.checked) });
  draw(true);
  return [labelled("Only those that differ from the default", box, { beside: true }), list];
}

function fsck() {
  return [
    h("p", {}, "The server checks each record that it reads, and counts on the overview the reads that it refused for a corrupt one. A check of everything reads all files. It needs them for itself, so it runs on a backup, or while the server is stopped:"),
    h("pre", { tabindex: "0", "aria-label": "Commands" }, "tuff backup today\ntuff restore today checked\ntuff fsck checked"),
  ];
}

class Explorer {
  constructor(place, document, context) {
    Object.assign(this, { place, context });
    this.operations = Object.entries(document.paths).flatMap(([path, methods]) => Object.entries(methods)
      .filter(([, operation]) => operation.operationId !== "takeBackup") // its reply is a file
      .map(([method, operation]) => ({ path, method: method.toUpperCase(), ...operation })));
    this.chosen = this.operations[0];
  }

  draw() {
    const names = this.operations.map((each, index) => [String(index), `${each.method} ${each.path}`]);
    this.form = h("div", {});
    this.place.replaceChildren(labelled("Call", select(names, "0", (index) => { this.chosen = this.operations[Number(index)]; this.drawForm(); })), this.form);
    this.drawForm();
  }

  drawForm() {
    const { parameters = [], requestBody, summary } = this.chosen;
    this.inputs = parameters.map((each) => ({ ...each, input: h("input", { required: each.required === true, size: "24" }) }));
    this.body = requestBody === undefined ? null : h("textarea", { spellcheck: "false", value: "{}" });
    this.reply = h("div", { role: "status" });
    this.form.replaceChildren(
      h("p", {}, summary),
      h("form", { submit: (event) => { event.preventDefault(); this.context.run(() => this.call()); } },
        ...this.inputs.map((each) => labelled(`${each.name} (${each.description ?? each.in})`, each.input)),
        this.body === null ? null : labelled("Body (JSON)", this.body),
        h("button", {}, "Send")),
      this.reply);
  }

  async effect(method, target) {
    const may = "It may change data.";
    if (this.body === null || !this.chosen.path.endsWith("/properties")) return may;
    try {
      const { ttl = method === "PUT" ? null : undefined } = JSON.parse(this.body.value || "{}");
      return ttl === undefined ? may : await expiry(target, { ttl }, this.context.signal);
    } catch {
      return may; // the server says what is wrong with the request itself
    }
  }

  async call() {
    const { method, path } = this.chosen;
    const query = new URLSearchParams();
    let target = path;
    for (const each of this.inputs) {
      if (each.in === "path") target = target.replace(`{${each.name}}`, encodeURIComponent(each.input.value));
      else if (each.input.value !== "") query.set(each.name, each.input.value);
    }
    if (query.size) target = `${target}?${query}`;
    if (method !== "GET" && !(await confirmed(`Send ${method} ${target}? ${await this.effect(method, target)}`, "Send"))) return;
    const began = performance.now();
    const reply = await send(method, target, { body: this.body === null ? undefined : this.body.value, refusals: false, signal: this.context.signal });
    const text = await reply.text();
    this.reply.replaceChildren(
      terms([["Status", `${reply.status} ${reply.statusText}, after ${format.duration((performance.now() - began) / 1000)}`], ...reply.headers]),
      h("pre", { tabindex: "0", "aria-label": "Reply" }, shown(text)));
  }
}

// What a change of a topic's properties lets expire: a dry run says so.
async function expiry(target, named, signal) {
  const dryRun = `${target.split("?")[0]}?dryRun=true`;
  const { expires } = await (await send("PATCH", dryRun, { body: JSON.stringify(named), signal })).json();
  if (expires === null) return "No message expires by it.";
  const most = expires.isLowerBound ? "At least " : "";
  return `${most}${format.counted(expires.messages, "message")}, published from ${format.time(expires.oldest)} to before ${format.time(expires.keptFrom)}, will expire at once.`;
}

function shown(text) {
  let found = text;
  try {
    found = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* it is no JSON */ }
  return found.length > SHOWN_CHARACTERS_MAX ? `${found.slice(0, SHOWN_CHARACTERS_MAX)}\n… ${found.length - SHOWN_CHARACTERS_MAX} more characters` : found;
}
