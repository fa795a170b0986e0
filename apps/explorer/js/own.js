// How does one bring a row? The fields for it: numbers that are pasted, a file and which of its rows, and the ids before it.
import { idsFrom, opened, rowFrom } from "./bring.js";
import { apart } from "./core.js";
import { at, count, h } from "./dom.js";
import { brought } from "./rows.js";

/**
 * Makes the fields, whose ids begin with `prefix`, in an element; `took` gets a row whenever one is brought, or the ids before it change.
 * @param {(row: import("./rows.js").Row) => void} took
 */
export function makeBringer(into, prefix, took) {
  /** The file that is open, what rows it has, and what was brought last. */
  let [file, rows, held, turn] = [undefined, [], undefined, 0];
  const id = (name) => prefix + name;
  const labelled = (name, label, element, shown = true) => [h("label", { for: id(name), class: shown ? "" : "unseen" }, label), element];
  const area = (name, rows, placeholder) => h("textarea", { id: id(name), rows, placeholder, spellcheck: "false" });
  const paste = area("paste", 3, "2.5, 1.0, 0.2, -1, -Infinity");
  const input = h("input", { type: "file", id: id("file"), accept: ".safetensors,.npy,.json,.txt,.csv" });
  const which = h("select", { id: id("array") });
  const index = h("input", { type: "number", id: id("index"), min: 0, step: 1, value: 0 });
  const last = h("span", { class: "quiet" });
  const choice = h("div", { class: "tools choice", hidden: true }, ...labelled("array", "Tensor", which), ...labelled("index", "row", index), last);
  const [ids, output] = [area("ids", 2, "[1, 4093, 198]"), area("output", 2, "[7042]")];
  const says = h("p", { id: id("bring-says"), role: "status" });

  /** Takes logits, or those that are there once more, with the ids of now. */
  function take(logits, name) {
    const found = brought(logits, name, idsFrom(ids.value), idsFrom(output.value));
    held = { logits, name };
    let odd = 0;
    for (const z of logits) if (z !== z) odd += 1;
    const before = found.ids.length + found.output.length;
    says.textContent = [
      `${count(logits.length)} ${logits.length === 1 ? "logit is" : "logits are"} in.`,
      odd ? `${count(odd)} of them ${odd === 1 ? "is" : "are"} NaN, which counts as minus infinity.` : "",
      before ? `${count(before)} ${before === 1 ? "id stands" : "ids stand"} before it.` : "",
    ].filter(Boolean).join(" ");
    took(found);
  }
  /** Does what may be refused; the last of several that were begun counts. */
  async function tried(work) {
    const mine = ++turn;
    try {
      const found = await work();
      if (mine === turn) take(...found);
    } catch (error) {
      if (mine === turn) says.textContent = `Not read: ${error.message}`;
    }
  }
  const read = () => tried(async () => {
    const of = rows[Number(which.value)];
    last.textContent = of.rows > 1 ? ` of 0 to ${count(of.rows - 1)}` : "";
    index.max = String(of.rows - 1);
    index.disabled = of.rows === 1;
    if (of.rows === 1) index.value = "0";
    const name = [file.name, rows.length > 1 ? of.name : "", of.rows > 1 ? `row ${index.value}` : ""].filter(Boolean).join(", ");
    return [await rowFrom(file, of, Number(index.value), apart), name];
  });
  async function open(given) {
    try {
      const found = await opened(given, apart);
      [file, rows] = [given, found];
      which.replaceChildren(...found.map(({ name, type, rows, vocab }, place) => h("option", { value: place }, type === "text" ? name : `${name}: ${type}, ${rows === 1 ? "" : `${count(rows)} \u00d7 `}${count(vocab)}`)));
      index.value = "0";
      choice.hidden = found.length === 1 && found[0].rows === 1;
      await read();
    } catch (error) {
      says.textContent = `Not read: ${error.message}`;
    }
  }

  const again = () => held && tried(() => [held.logits, held.name]);
  input.addEventListener("change", () => input.files[0] && open(input.files[0]));
  which.addEventListener("change", () => ((index.value = "0"), read()));
  index.addEventListener("change", read);
  for (const list of [ids, output]) list.addEventListener("change", again);
  into.append(
    ...labelled("paste", "Logits", paste, false),
    h("div", { class: "tools" }, h("button", { type: "button", id: id("take"), onclick: () => tried(async () => [await apart("fromText", paste.value), "A row that was pasted"]) }, "Use these numbers"), h("span", {}, ...labelled("file", "or a file ", input))),
    choice,
    h("details", {}, h("summary", {}, "The ids before it, for penalties, DRY and the position"), ...labelled("ids", "Prompt", ids), ...labelled("output", "Output so far", output)),
    says);
  return {
    open,
    /** Shows the ids of a row that came otherwise, from a link. */
    show({ logits, ids: prompt, output: said }, name) {
      held = { logits, name };
      ids.value = prompt.length ? `[${prompt.join(", ")}]` : "";
      output.value = said.length ? `[${said.join(", ")}]` : "";
    },
  };
}

/** Lets files be dropped anywhere: the first becomes the row of the page; a second one, or one dropped over the comparison, the row beside it. */
export function listenDrops(first, second, dropped) {
  const over = (event, is) => {
    if (!event.dataTransfer?.types.includes("Files")) return false;
    event.preventDefault();
    document.body.classList.toggle("dropping", is);
    return true;
  };
  addEventListener("dragover", (event) => over(event, true));
  addEventListener("dragleave", (event) => event.relatedTarget === null && over(event, false));
  addEventListener("drop", (event) => {
    if (!over(event, false)) return;
    const files = [...event.dataTransfer.files];
    const beside = at("comparison").contains(event.target);
    dropped();
    // What is said of it must be seen.
    if (beside || files.length > 1) at("second").open = true;
    if (files.length > 1) [first, second].forEach((bringer, n) => bringer.open(files[n]));
    else if (files.length === 1) (beside ? second : first).open(files[0]);
  });
}
