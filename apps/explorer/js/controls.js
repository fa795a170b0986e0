// How does a person set a parameter? By a slider and a number beside it, a list, a box or a line of text, made from the table.
import { NEUTRAL, PARAMETERS, ownName } from "./parameters.js";
import { at, h } from "./dom.js";

const fields = new Map();

/** Makes all controls. `changed(name, value)` is called at every movement; `value(name)` is what holds. */
export function makeControls(value, changed) {
  for (const parameter of PARAMETERS) at(`group-${parameter.group}`).append(control(parameter, () => value(parameter.name), changed));
}

function control(parameter, held, changed) {
  const { name, label, kind, help } = parameter;
  const id = `p-${name}`;
  const described = { "aria-describedby": `${id}-help` };
  const parts = [];
  let show;
  if (kind === "number") {
    const { min, max, step, power } = parameter;
    // The slider runs in 400 steps from its least value to its largest, finer near the least where `power` says so.
    const value = (place) => Number((Math.round((min + (max - min) * (place / 400) ** power) / step) * step).toFixed(6));
    const slider = h("input", { type: "range", id, min: 0, max: 400, step: 1, ...described });
    const number = h("input", { type: "number", step: "any", "aria-label": `${label}, exactly`, ...described });
    slider.addEventListener("input", () => changed(name, value(Number(slider.value))));
    number.addEventListener("change", () => number.value !== "" && changed(name, Number(number.value)));
    show = (now) => {
      slider.value = String(Math.round(400 * Math.max(0, (now - min) / (max - min)) ** (1 / power)));
      slider.setAttribute("aria-valuetext", now === NEUTRAL[name] && name !== "temperature" ? `${now}, neutral` : String(now));
      if (document.activeElement !== number) number.value = String(now);
    };
    // Arrow keys must always move the value, however fine the slider is there.
    slider.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const now = held() + way * step * (event.shiftKey ? 10 : 1);
      changed(name, Number(Math.min(max, Math.max(min, now)).toFixed(6)));
    });
    parts.push(slider, number);
  } else if (kind === "choice") {
    const select = h("select", { id, ...described }, ...parameter.choices.map((choice) => h("option", { value: choice }, choice)));
    select.addEventListener("change", () => changed(name, select.value));
    show = (now) => {
      if (![...select.options].some((option) => option.value === now)) select.append(h("option", { value: now }, now));
      select.value = now;
    };
    parts.push(select);
  } else if (kind === "flag") {
    const box = h("input", { type: "checkbox", id, ...described });
    box.addEventListener("change", () => changed(name, box.checked));
    show = (now) => (box.checked = now);
    parts.push(box);
  } else {
    const line = h("input", { type: "text", id, inputmode: kind === "seed" ? "numeric" : "text", spellcheck: "false", ...described });
    line.addEventListener("change", () => {
      const text = line.value.trim();
      if (kind !== "seed") return changed(name, text);
      const fits = /^\d{1,20}$/.test(text) && BigInt(text) < 1n << 64n;
      line.setCustomValidity(fits ? "" : "A seed is a whole number from 0 to 18446744073709551615.");
      line.reportValidity();
      if (fits) changed(name, BigInt(text) > 9007199254740991n ? text : Number(text));
    });
    show = (now) => {
      if (document.activeElement !== line) line.value = String(now);
    };
    parts.push(line);
    if (kind === "seed") {
      const another = () => changed(name, crypto.getRandomValues(new Uint32Array(1))[0] % 100000);
      parts.push(h("button", { type: "button", id: "another-seed", onclick: another }, "Another"));
    }
  }
  const field = h("div", { class: `field ${kind}` }, h("label", { for: id }, label), ...parts, h("p", { class: "help", id: `${id}-help` }, help));
  // `held` is the value that the control shows, unless a hand has been on it since.
  const one = { show, field, held: undefined };
  for (const touched of ["input", "change"]) field.addEventListener(touched, () => (one.held = undefined));
  fields.set(name, one);
  return field;
}

/** The parameter that an error of the core speaks of. */
export function controlOf(parameter) {
  const name = ownName(parameter ?? "");
  return PARAMETERS.find((one) => one.name === name)?.name ?? PARAMETERS.find((one) => name && one.name.startsWith(`${name}_`))?.name;
}

/** The control that is marked; undefined until `mark` has been called. */
let marked;

/** Marks the control whose value was refused, and no other; opens the group that it lies in. */
export function mark(wrong) {
  if (wrong === marked) return;
  marked = wrong;
  for (const [name, { field }] of fields) {
    field.classList.toggle("wrong", name === wrong);
    for (const input of field.querySelectorAll("input, select")) input.setAttribute("aria-invalid", String(name === wrong));
    if (name === wrong) field.closest("details")?.setAttribute("open", "");
  }
}

/** Shows the settings in the controls, and which of them are not neutral. It writes what has changed alone: it is called for each frame. */
export function showControls(settings) {
  for (const [name, one] of fields) {
    const now = settings[name];
    if (one.held === now) continue;
    one.show(now);
    // A field that somebody writes in keeps its text.
    one.held = one.field.contains(document.activeElement) ? undefined : now;
    one.field.classList.toggle("set", now !== NEUTRAL[name]);
  }
}
