// How is an element made? `h` for HTML and `s` for SVG: a name, attributes, children. Texts are always texts, never markup.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Makes an element of HTML. */
export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
/** Makes an element of SVG. */
export const s = (name, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
/** The element of that id. */
export const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** Writes an element's text, unless it stands there. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
/** The head of a table; a name after ! is read out and not shown. */
export const head = (...names) => h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name.startsWith("!") ? h("span", { class: "unseen" }, name.slice(1)) : name))));

/** A share as people read it, always in percent. Only 1 is "100 %", only 0 is "0 %". */
export function percent(p) {
  const share = 100 * p;
  if (p === 0 || p >= 1) return p === 0 ? "0\u00a0%" : "100\u00a0%";
  if (share >= 99.95) return share > 99.9999 ? "> 99.9999\u00a0%" : `${Math.floor(share * 1e4) / 1e4}\u00a0%`;
  if (share >= 1e-4) return `${share >= 10 ? share.toFixed(1) : share >= 1 ? share.toFixed(2) : share >= 0.01 ? share.toFixed(3) : share.toFixed(5)}\u00a0%`;
  return `${share.toExponential(1)}\u00a0%`;
}
/** A number with thin spaces between thousands. */
export const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
