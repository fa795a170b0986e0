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

/** A share as people read it. */
export function percent(p) {
  if (p === 0) return "0 %";
  if (p < 0.0001) return `${p.toExponential(1)}`;
  return `${(100 * p).toFixed(p < 0.01 ? 3 : p < 0.1 ? 2 : 1)} %`;
}
/** A number with thin spaces between thousands. */
export const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
