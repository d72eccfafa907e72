// Calls of the server's HTTP API. The token, if the server wants one, lives as long as the tab.

const TOKEN = "tuff-token";

/** A refusal of the server with its problem document, or a failure to reach it (status 0). */
export class ApiError extends Error {
  constructor(status, code, detail, problem = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.problem = problem;
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** Sends a request; the reply, whose status is below 400. Throws ApiError. */
export async function send(method, path, { body, headers = {}, signal, refusals = true } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const fields = { ...headers };
  if (token) fields.Authorization = `Bearer ${token}`;
  if (body !== undefined) fields["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, { method, headers: fields, body, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server can't be reached. It may be stopped, or the network is interrupted.");
  }
  if (refusals && reply.status >= 400) throw await refusal(reply);
  return reply;
}

async function refusal(reply) {
  try {
    const problem = await reply.json();
    if (problem.detail) return new ApiError(reply.status, problem.code, problem.detail, problem);
  } catch { /* no problem document: a proxy answered */ }
  return new ApiError(reply.status, "unknown", `The server answered ${reply.status} ${reply.statusText}.`);
}

export async function get(path, options) {
  return (await send("GET", path, options)).json();
}

export async function post(path, value, options) {
  const reply = await send("POST", path, { ...options, body: value === undefined ? undefined : JSON.stringify(value) });
  const text = await reply.text();
  return text ? JSON.parse(text) : null;
}

/** A path with a query of those parameters that have a value. */
export function address(path, parameters = {}) {
  const found = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(found).toString();
  return query ? `${path}?${query}` : path;
}

export function topicPath(namespace, topic) {
  return `/v1/namespaces/${encodeURIComponent(namespace)}/topics/${encodeURIComponent(topic)}`;
}
