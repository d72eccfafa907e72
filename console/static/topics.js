// Topics: size, rate, age of each, by pages; in a cluster, also who owns those of other servers.

import { ApiError, address, get } from "./api.js";
import { h, labelled, redraw, table } from "./dom.js";
import * as format from "./format.js";

const PAGE_COUNT = 50;
const INTERVAL_MS = 5000;
const OWNERS_COUNT = 10000; // of one call, which reads all entries of the metadata store
const OTHERS_COUNT = 500; // rows

export const title = () => "Topics";

export function show(place, { query }, { every, run, signal }) {
  const contains = query.get("contains") ?? "";
  const after = query.get("after") ?? "";
  const input = h("input", { type: "search", value: contains, size: "40" });
  const form = h("form", { role: "search", submit: (event) => { event.preventDefault(); location.hash = address("#/topics", { contains: input.value }); } },
    labelled("Part of namespace:name", input), h("button", {}, "Filter"));
  const list = h("div", {});
  const others = h("div", {});
  place.replaceChildren(form, list, others);
  run(async () => others.replaceChildren(...drawnOthers(await othersOf(contains, signal))));
  let before = null;
  every(INTERVAL_MS, async () => {
    const found = await get(address("/v1/topics", { contains, after, limit: PAGE_COUNT }), { signal });
    const now = { at: performance.now(), topics: new Map(found.topics.map((each) => [nameOf(each), each])) };
    redraw(list, ...drawn(found, now, before, contains, after));
    before = now;
  });
}

/** The topics of the other servers of a cluster with their owners; null if this is a single server. */
async function othersOf(contains, signal) {
  let cluster;
  try {
    cluster = await get("/v1/cluster", { signal });
  } catch (error) {
    // A principal that only reads may not ask for it.
    if (error instanceof ApiError && (error.status === 404 || error.status === 403)) return null;
    throw error;
  }
  const { topics, next } = await get(address("/v1/cluster/topics", { limit: OWNERS_COUNT }), { signal });
  // The log of a consumer group has one more part in its name.
  const found = topics.filter((each) => each.server !== cluster.server.id && each.topic.includes(contains) && each.topic.split(":").length === 2);
  return { found, isAll: next === null };
}

function drawnOthers(others) {
  if (others === null) return [];
  const rows = others.found.slice(0, OTHERS_COUNT).map((each) => {
    const [namespace, name] = each.topic.split(":");
    return [
      h("a", { href: addressOf("topic", namespace, name) }, each.topic),
      h("a", { href: addressOf("messages", namespace, name), "aria-label": `Messages of ${each.topic}` }, "messages"),
      each.server === null ? "none yet" : each.isAlive ? each.server : `${each.server}, which has ended`,
    ];
  });
  const more = others.found.length > rows.length || !others.isAll;
  return [
    table(`Topics of the other servers, in the order of their names.${more ? " These are not all: filter by a part of the name, or use tuff cluster topics." : ""}`,
      ["Topic", "Messages", "Server"], rows, "No other server owns such a topic."),
  ];
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
      format.atLeast(each.messageCount, each.isLowerBound), format.bytes(each.storedBytes), format.rate(rate), format.count(each.publishedCount),
      format.time(each.oldest), format.time(each.newest), format.duration(each.ttl),
      String(each.partitionCount), String(each.positionCount),
    ];
  });
  const number = (text) => ({ text, kind: "number" });
  const time = (text) => ({ text, kind: "time" });
  const page = (text, parameters) => h("a", { href: address("#/topics", { contains, ...parameters }) }, text);
  return [
    table(`${format.counted(found.count, "topic")}${contains ? ` with “${contains}”` : ""}, in the order of their names; in a cluster, those that this server owns. Times are UTC; sizes are estimates and leave out recent writes; rates and published messages count from the start of the server.`,
      ["Topic", "Messages", number("Count"), number("Stored"), number("Rate"), number("Published"), time("Oldest"), time("Newest"), number("Time to live"), number("Partitions"), number("Positions")],
      rows, contains ? "No topic has this text in its name." : "There is no topic yet."),
    h("p", { class: "controls" }, after ? page("First page", {}) : null, found.next === null ? null : page("Next page", { after: found.next })),
  ];
}
