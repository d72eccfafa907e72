// The pages, the address of each, and what all of them share.

import { ApiError, get, setToken } from "./api.js";
import { h } from "./dom.js";
import * as messages from "./messages.js";
import * as overview from "./overview.js";
import * as snapshots from "./snapshots.js";
import * as system from "./system.js";
import * as topic from "./topic.js";
import * as topics from "./topics.js";
import * as transactions from "./transactions.js";

// In the navigation, with the name there; the others are reached by links.
const PAGES = { overview, topics, messages, transactions, snapshots, system, topic };
const NAMES = { overview: "Overview", topics: "Topics", messages: "Messages", transactions: "Transactions", snapshots: "Snapshots", system: "System" };
const HEALTH_MS = 5000;
const THEME = "tuff-theme";

let leaving = new AbortController();
let isAsked = false; // for a token, since the page was opened

/** `#/name/part/part?query` as `{name, parts, query}`. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(decodeURIComponent);
  return { name: name in PAGES ? name : "overview", parts, query: new URLSearchParams(query) };
}

/** What a page gets: the signal that it is left, a way to repeat work, and where errors go. */
function context(signal) {
  const run = async (work) => {
    try {
      await work();
      if (!signal.aborted) showBanner("");
    } catch (error) {
      if (!signal.aborted) showError(error);
    }
  };
  const every = async (intervalMs, work) => {
    while (!signal.aborted) {
      if (!document.hidden) await run(work);
      await new Promise((resolve) => { setTimeout(resolve, intervalMs); });
    }
  };
  return { signal, run, every };
}

function show() {
  leaving.abort();
  leaving = new AbortController();
  const found = route();
  const page = PAGES[found.name];
  const main = document.getElementById("main");
  const title = page.title(found);
  const heading = h("h1", { tabindex: "-1" }, title);
  const content = h("div", {});
  main.replaceChildren(heading, content);
  document.title = `${title} – Tuff`;
  for (const link of document.querySelectorAll("#pages a")) {
    const isCurrent = link.dataset.page === (found.name === "topic" ? "topics" : found.name);
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showBanner("");
  isAsked = false;
  heading.focus();
  page.show(content, found, context(leaving.signal));
}

function showError(error) {
  if (!(error instanceof ApiError)) {
    showBanner(`The console has a bug: ${error.message}`);
    throw error;
  }
  if (error.status === 401) askForToken(error.message);
  else showBanner(error.message);
}

function showBanner(text) {
  const banner = document.getElementById("banner");
  if (banner.textContent !== text) banner.replaceChildren(...(text ? [text] : []));
}

function askForToken(reason) {
  showBanner(reason);
  if (isAsked) return;
  isAsked = true;
  const input = h("input", { id: "token", type: "password", autocomplete: "off", size: "50", required: true });
  const form = h("form", { submit: (event) => { event.preventDefault(); setToken(input.value.trim()); dialog.close(); show(); } },
    h("p", {}, reason),
    h("label", {}, "Token", input),
    h("button", {}, "Use this token"));
  const dialog = h("dialog", { "aria-label": "Token", close: () => { dialog.remove(); } }, form);
  document.body.append(dialog);
  dialog.showModal();
}

async function showHealth() {
  const place = document.getElementById("server");
  let text, kind;
  try {
    const { status, version, checks } = await get("/health/ready", { refusals: false });
    const bad = Object.entries(checks ?? {}).filter(([, check]) => check.status !== "ok").map(([name]) => name);
    text = `${status ?? "starting"}${bad.length ? `: ${bad.join(", ")}` : ""}${version ? ` · version ${version}` : ""}`;
    kind = status === "ok" ? "good" : status === "down" ? "bad" : "warn";
  } catch {
    [text, kind] = ["not reachable", "bad"];
  }
  if (place.textContent !== text) {
    place.textContent = text;
    place.className = kind;
  }
  setTimeout(showHealth, HEALTH_MS);
}

function begin() {
  const theme = document.getElementById("theme");
  const apply = (value) => { document.documentElement.dataset.theme = value; };
  theme.value = localStorage.getItem(THEME) ?? "auto";
  apply(theme.value);
  theme.addEventListener("change", () => { localStorage.setItem(THEME, theme.value); apply(theme.value); });
  document.getElementById("pages").replaceChildren(...Object.entries(NAMES).map(([name, text]) =>
    h("li", {}, h("a", { href: `#/${name}`, "data-page": name }, text))));
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
  addEventListener("hashchange", show);
  show();
  showHealth();
}

begin();
