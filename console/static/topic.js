// One topic: properties, partitions, consumers and their lag, holds, delayed messages.

import { ApiError, address, get, topicPath } from "./api.js";
import { h, redraw, table, terms } from "./dom.js";
import * as format from "./format.js";
import { addressOf } from "./topics.js";

const INTERVAL_MS = 5000;
const GROUPS_COUNT_MAX = 50;
const PARTITIONS_COUNT_MAX = 50;

export const title = ({ parts }) => `Topic ${parts.join(":")}`;

export function show(place, { parts }, { every, signal }) {
  const [namespace, name] = parts;
  every(INTERVAL_MS, async () => {
    const path = topicPath(namespace, name);
    const topic = await get(path, { signal });
    const numbers = [...topic.partitions, ...topic.retired].sort((one, other) => one - other);
    const shown = numbers.slice(0, PARTITIONS_COUNT_MAX);
    const [logs, groups] = await Promise.all([
      Promise.all(shown.map((number) => logOf(namespace, name, number, signal))),
      groupsOf(namespace, name, signal),
    ]);
    redraw(place, ...drawn(namespace, name, topic, logs, numbers.length, groups));
  });
}

async function logOf(namespace, name, number, signal) {
  const path = topicPath(namespace, `${name}:${number}`);
  const committed = get(`${path}/offsets?isolation=committed`, { signal }).catch((error) => {
    if (error instanceof ApiError && error.status === 503) return null; // transactions are down
    throw error;
  });
  const [all, ofCommitted, { positions }, { holds }] = await Promise.all([
    get(`${path}/offsets`, { signal }), committed, get(`${path}/positions`, { signal }), get(`${path}/holds`, { signal })]);
  return { number, all, committed: ofCommitted, positions, holds };
}

async function groupsOf(namespace, name, signal) {
  const names = await get(`/v1/namespaces/${encodeURIComponent(namespace)}/groups`, { signal });
  const groups = await Promise.all(names.slice(0, GROUPS_COUNT_MAX).map((each) =>
    get(`/v1/namespaces/${encodeURIComponent(namespace)}/groups/${encodeURIComponent(each)}`, { signal })));
  const rows = groups.flatMap((group) => group.partitions
    .filter((each) => each.partition.split(":")[0] === name).map((each) => ({ group, ...each })));
  return { rows, leftOut: Math.max(0, names.length - GROUPS_COUNT_MAX) };
}

function drawn(namespace, name, topic, logs, partitionCount, groups) {
  const { ttl, ...others } = topic.properties;
  const link = (number) => h("a", { href: addressOf("messages", namespace, `${name}:${number}`) }, String(number));
  const positions = logs.flatMap((log) => log.positions.map((each) => ({ log, ...each })));
  const holds = logs.flatMap((log) => log.holds.map((each) => ({ log, ...each })));
  const time = (text) => ({ text, kind: "time" });
  return [
    h("p", {}, h("a", { href: addressOf("messages", namespace, name) }, "Messages"), " · ",
      h("a", { href: `${addressOf("messages", namespace, name)}?view=delayed` }, "Delayed messages")),
    terms([["Time to live", format.duration(Number(ttl))], ["Generation", String(topic.generation)],
      ["Partitions", `${topic.partitions.length} active, ${topic.retired.length} retired`],
      ...Object.entries(others)]),
    h("h2", {}, "Partitions"),
    table(partitionCount > logs.length ? `The first ${logs.length} of ${partitionCount} partitions` : "All partitions",
      ["Partition", time("Oldest"), time("Newest"), time("Committed up to"), "What holds committed readers back"],
      logs.map((log) => [link(log.number), idTime(log.all.earliest), idTime(log.all.end),
        log.committed === null ? "transactions are down" : idTime(log.committed.end), blocker(log.committed)])),
    h("h2", {}, "Consumer groups"),
    table(groups.leftOut ? `Groups; ${groups.leftOut} of the namespace are left out` : "Groups",
      ["Group", "State", "Partition", "Member", time("Committed offset"), "Lag"],
      groups.rows.map((each) => [each.group.name, each.group.state, each.partition, each.memberId ?? "nobody", idTime(each.after),
        each.behindMs === null ? "–" : format.duration(each.behindMs / 1000)])),
    h("h2", {}, "Named positions"),
    table("Consumers that keep their offsets elsewhere", ["Position", "Partition", time("Offset"), time("Recorded"), "Lag"],
      positions.map((each) => [each.name, String(each.log.number), idTime(each.position), format.time(each.updatedAt), lag(each.log.all.end, each.position)])),
    h("h2", {}, "Retention holds"),
    table("Holds that are not over", ["Hold", "Partition", time("From"), time("Expires")],
      holds.map((each) => [each.name, String(each.log.number), idTime(each.from), format.time(each.expiresAt)])),
  ];
}

const idTime = (id) => (id === null ? "–" : format.time(format.timeOfId(id)));

function lag(end, position) {
  return end === null ? "0 s" : format.duration(Math.max(0, format.timeOfId(end) - format.timeOfId(position)) / 1000);
}

function blocker(committed) {
  if (committed === null || committed.blockedBy === null) return "nothing";
  return h("a", { href: address("#/transactions", { show: committed.blockedBy }) }, `transaction ${committed.blockedBy}`);
}
