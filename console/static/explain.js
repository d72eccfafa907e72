// Why a reader receives a message or not, as the server explains it.

import { ApiError, address, get, post } from "./api.js";
import { h, terms } from "./dom.js";
import * as format from "./format.js";

/** What the server says of the two kinds of readers, as elements. `path` is that of the topic. */
export async function explanation(path, id, signal) {
  const readers = [["committed", "A reader of committed messages"], ["all", "A reader without a snapshot"]];
  const found = await Promise.all(readers.map(async ([isolation, who]) => {
    try {
      return drawn(who, await get(address(`${path}/messages/${id}/explain`, { isolation }), { signal }));
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

function drawn(who, found) {
  const tx = found.transaction;
  return h("div", {},
    h("p", {}, `${who}: `, h("strong", { class: found.visible ? "good" : "bad" }, found.visible ? "visible" : "hidden"), ` because ${found.reason.replaceAll("_", " ")}. `, sentence(found.detail), " ", sentence(found.advice)),
    tx === null ? null : terms([
      ["Its transaction", h("a", { href: address("#/transactions", { show: tx.transactionId }) }, tx.transactionId)],
      ["State", tx.reason === null ? tx.state : `${tx.state}: ${tx.reason}`], ["Client", tx.client], ["Started", format.time(tx.startedAt)]]));
}

function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}` : "";
}
