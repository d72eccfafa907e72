// Builds elements. Texts become text nodes only, so nothing that a publisher wrote is ever markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (a function) and children (texts, elements, null). */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

/** A table in a box that scrolls. `columns`: texts, or `{text, kind}`, whose kind is a class. */
export function table(caption, columns, rows, empty = "None.") {
  const heads = columns.map((each) => (typeof each === "string" ? { text: each, kind: "" } : each));
  const cells = (row) => row.map((cell, index) => h("td", { class: heads[index].kind || null }, cell));
  const body = rows.length
    ? rows.map((row) => (row instanceof Node ? row : h("tr", {}, ...cells(row))))
    : [h("tr", {}, h("td", { colspan: heads.length, class: "quiet" }, empty))];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...heads.map((each) => h("th", { scope: "col", class: each.kind || null }, each.text)))),
      h("tbody", {}, ...body)));
}

/** A list of terms and what belongs to them. */
export function terms(pairs) {
  return h("dl", {}, ...pairs.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
}

/** Replaces what is in an element. The focus stays on the link, button or region that had it. */
export function redraw(place, ...elements) {
  const before = place.contains(document.activeElement) ? document.activeElement : null;
  place.replaceChildren(...elements);
  if (before === null) return;
  const same = [...place.querySelectorAll(before.tagName)].find((each) => keyOf(each) === keyOf(before));
  same?.focus({ preventScroll: true });
}

function keyOf(element) {
  return element.getAttribute("href") ?? element.getAttribute("aria-label") ?? element.textContent;
}

/** A label with its control. */
export function labelled(text, control, { beside = false } = {}) {
  return beside ? h("label", { class: "beside" }, control, text) : h("label", {}, text, control);
}

/** A selection of `[value, text]` pairs. */
export function select(pairs, chosen, onChange) {
  const element = h("select", { change: (event) => onChange(event.target.value) },
    ...pairs.map(([value, text]) => h("option", { value }, text)));
  element.value = chosen;
  return element;
}

/** Asks in a dialog; true if the user confirms. */
export function confirmed(question, action) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": action, close: () => { resolve(dialog.returnValue === "yes"); dialog.remove(); } },
      h("p", {}, question),
      h("div", { class: "controls" },
        h("button", { type: "button", click: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "danger", click: () => dialog.close("yes") }, action)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
