// Why a reader receives a message or not, as the server explains it.

import { ApiError, address, get, post, topicPath } from "./api.js";
import { h, labelled, terms } from "./dom.js";
import * as format from "./format.js";

const READERS = [[{ isolation: "committed" }, "A reader of committed messages"], [{ isolation: "all" }, "A reader without a snapshot"]];

/** What the server says of the two kinds of readers, or of a reader in transaction `tx`, as
 * elements. `path` is that of the topic. */
export async function explanation(path, id, signal, tx = "") {
  const readers = tx ? [[{ tx }, `A reader in transaction ${tx}`]] : READERS;
  const found = await Promise.all(readers.map(async ([reader, who]) => {
    try {
      return drawn(who, await get(address(`${path}/messages/${id}/explain`, reader), { signal }));
    } catch (error) {
      if (error instanceof ApiError && error.status) return h("p", {}, `${who}: ${error.message}`);
      throw error;
    }
  }));
  return found;
}

/** The same of a reader in a snapshot: its pointers and lists. */
export async function explanationIn(snapshot, path, id, signal) {
  const { readPointer, invalids, inProgress } = snapshot;
  const transaction = { transactionId: "0", writePointer: "0", readPointer, invalids, inProgress };
  return drawn("A reader in this snapshot", await post(`${path}/messages/${id}/explain`, { transaction }, { signal }));
}

/** A form that asks for a topic and an id of any message, also of one that no list shows. */
export function question(topic, context) {
  const name = h("input", { required: true, size: "30", placeholder: "namespace:topic", pattern: "[^:]+:.+", value: topic });
  const id = h("input", { required: true, size: "44", pattern: "[0-9a-fA-F]{36}([0-9a-fA-F]{4})?" });
  const tx = h("input", { size: "22", pattern: "[0-9]+", placeholder: "optional" });
  const answer = h("div", { role: "status" });
  const ask = async () => {
    const [namespace, ...rest] = name.value.trim().split(":");
    answer.replaceChildren(...await explanation(topicPath(namespace, rest.join(":")), id.value.trim().toLowerCase(), context.signal, tx.value.trim()));
  };
  return [
    h("h2", {}, "Why is my message not visible?"),
    h("form", { submit: (event) => { event.preventDefault(); context.run(ask); } },
      labelled("Topic of the message", name), labelled("Id of the message", id), labelled("Transaction of the reader", tx), h("button", {}, "Explain")),
    answer,
  ];
}

function drawn(who, found) {
  const tx = found.transaction;
  return h("div", {},
    h("p", {}, `${who}: `, h("strong", { class: found.visible ? "good" : "bad" }, found.visible ? "visible" : "hidden"), ", because ", found.detail, found.detail.endsWith(".") ? " " : ". ", sentence(found.advice), " ", h("code", {}, found.reason)),
    tx === null ? null : terms([
      ["Its transaction", h("a", { href: address("#/transactions", { show: tx.transactionId }) }, tx.transactionId)],
      ["State", tx.reason === null ? tx.state : `${tx.state}: ${tx.reason}`], ["Client", tx.client], ["Started", format.time(tx.startedAt)]]));
}

function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}` : "";
}
