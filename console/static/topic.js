// One topic: properties, partitions, consumers and their lag, holds, delayed messages.

import { address, get, topicPath } from "./api.js";
import { h, redraw, table, terms } from "./dom.js";
import * as format from "./format.js";
import { addressOf } from "./topics.js";

const INTERVAL_MS = 5000;

export const title = ({ parts }) => `Topic ${parts.join(":")}`;

export function show(place, { parts }, { every, signal }) {
  const [namespace, name] = parts;
  every(INTERVAL_MS, async () => {
    const overview = await get(`${topicPath(namespace, name)}/overview`, { signal });
    redraw(place, ...drawn(namespace, name, overview));
  });
}

function drawn(namespace, name, { topic, partitions: logs, groups, hasAllGroups }) {
  const partitionCount = topic.partitions.length + topic.retired.length;
  const shares = groups.flatMap((group) => group.partitions.map((each) => ({ group, ...each })));
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
    table(hasAllGroups ? "Groups" : "The first groups that read the topic; tuff groups ls lists all",
      ["Group", "State", "Partition", "Member", time("Committed offset"), "Unread", "Oldest unread"],
      shares.map((each) => [each.group.name, each.group.state, each.partition, each.memberId ?? "nobody", idTime(each.after),
        format.atLeast(each.unread, each.isLowerBound), each.unreadAgeMs === null ? "–" : format.duration(each.unreadAgeMs / 1000)])),
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
