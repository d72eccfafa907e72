// Topics: size, rate, age of each, by pages.

import { address, get } from "./api.js";
import { h, labelled, redraw, table } from "./dom.js";
import * as format from "./format.js";

const PAGE_COUNT = 50;
const INTERVAL_MS = 5000;

export const title = () => "Topics";

export function show(place, { query }, { every, signal }) {
  const contains = query.get("contains") ?? "";
  const after = query.get("after") ?? "";
  const input = h("input", { type: "search", value: contains, size: "40" });
  const form = h("form", { role: "search", submit: (event) => { event.preventDefault(); location.hash = address("#/topics", { contains: input.value }); } },
    labelled("Part of namespace:name", input), h("button", {}, "Filter"));
  const list = h("div", {});
  place.replaceChildren(form, list);
  let before = null;
  every(INTERVAL_MS, async () => {
    const found = await get(address("/v1/topics", { contains, after, limit: PAGE_COUNT }), { signal });
    const now = { at: performance.now(), topics: new Map(found.topics.map((each) => [nameOf(each), each])) };
    redraw(list, ...drawn(found, now, before, contains, after));
    before = now;
  });
}

export const nameOf = (topic) => `${topic.namespace}:${topic.name}`;
export const addressOf = (page, namespace, topic) => `#/${page}/${encodeURIComponent(namespace)}/${encodeURIComponent(topic)}`;

function drawn(found, now, before, contains, after) {
  const seconds = before === null ? null : (now.at - before.at) / 1000;
  const rows = found.topics.map((each) => {
    const earlier = before?.topics.get(nameOf(each));
    const rate = earlier === undefined ? null : Math.max(0, each.publishedCount - earlier.publishedCount) / seconds;
    return [
      h("a", { href: addressOf("topic", each.namespace, each.name) }, nameOf(each)),
      h("a", { href: addressOf("messages", each.namespace, each.name), "aria-label": `Messages of ${nameOf(each)}` }, "messages"),
      format.bytes(each.storedBytes), format.rate(rate), format.count(each.publishedCount),
      format.time(each.oldest), format.time(each.newest), format.duration(each.ttl),
      String(each.partitionCount), String(each.positionCount),
    ];
  });
  const number = (text) => ({ text, kind: "number" });
  const time = (text) => ({ text, kind: "time" });
  const page = (text, parameters) => h("a", { href: address("#/topics", { contains, ...parameters }) }, text);
  return [
    table(`${format.count(found.count)} topics${contains ? ` with “${contains}”` : ""}, in the order of their names; in a cluster, those that this server owns. Times are UTC; sizes are estimates and leave out recent writes; counts begin with the server.`,
      ["Topic", "Messages", number("Stored"), number("Rate"), number("Published"), time("Oldest"), time("Newest"), number("Time to live"), number("Partitions"), number("Positions")],
      rows, contains ? "No topic has this text in its name." : "There is no topic yet."),
    h("p", { class: "controls" }, after ? page("First page", {}) : null, found.next === null ? null : page("Next page", { after: found.next })),
  ];
}
