// A payload in the form that the user chose.

import { decode } from "./avro.js";
import * as format from "./format.js";

export const FORMS = [["auto", "text, or hex"], ["json", "JSON"], ["hex", "hex"], ["avro", "Avro"]];

/** The text of a payload in a form; `schema` is the JSON text of an Avro schema, or empty. */
export function payloadText(payload, form, schema) {
  try {
    switch (form) {
      case "json": return JSON.stringify(JSON.parse(textOf(payload)), null, 2);
      case "hex": return format.hex(format.payloadBytes(payload));
      case "avro": return JSON.stringify(decode(format.payloadBytes(payload), schema), writable, 2);
      default: return typeof payload === "string" ? payload : format.hex(format.payloadBytes(payload));
    }
  } catch (error) {
    return `This payload can't be shown in this form: ${error.message}`;
  }
}

/** Whether the payload is JSON with this value at a path such as `order.id` or `lines.0.sku`. */
export function hasField(payload, path, wanted) {
  let found;
  try {
    found = JSON.parse(textOf(payload));
  } catch {
    return false;
  }
  for (const name of path.split(".")) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, name)) return false;
    found = found[name];
  }
  return wanted === "" || (typeof found === "string" ? found : JSON.stringify(found)) === wanted;
}

function textOf(payload) {
  return typeof payload === "string" ? payload : new TextDecoder("utf-8", { fatal: true }).decode(format.payloadBytes(payload));
}

function writable(_name, value) {
  if (typeof value === "bigint") return value.toString();
  return value instanceof Uint8Array ? { hex: [...value].map((each) => each.toString(16).padStart(2, "0")).join("") } : value;
}
