// How are these settings said elsewhere? Programs for Gumball that draw the page's own token, and code for engines that name them otherwise.
import { at, h } from "./dom.js";
import { engineCode, refusals } from "./engines.js";
import { pythonCode, rustCode, SAVED } from "./owncode.js";
import { shown } from "./rows.js";

export const TARGETS = { rust: "Gumball, Rust", python: "Gumball, Python", vllm: "vLLM", sglang: "SGLang", llama: "llama.cpp", transformers: "transformers" };
const OWN = { rust: rustCode, python: pythonCode };

/** Returns the code for a target, and what there is to know beside it, line by line. `winner` is the page's token. */
export function code(target, settings, row, winner) {
  if (Object.hasOwn(OWN, target)) {
    const same = winner ? `draws the page's token, \u201c${shown(row, winner.id)}\u201d with the id ${winner.id}, bit for bit` : "draws no token, as the page";
    return { text: OWN[target](settings, row), lines: [`Beside ${SAVED}, which the button here saves, this ${same}: it has the prompt's ids, the output's, the seed and the draw index.`] };
  }
  const { text, missing, differences } = engineCode(target, settings, row);
  const lacking = missing.length ? [`Has no counterpart there: ${missing.join(", ")}.`] : [];
  return { text, lines: [...differences, ...refusals(target, settings), ...lacking] };
}

/** Shows the code of a target; without settings that hold, why there is none. */
export function showCopy(target, settings, row, winner) {
  const known = Object.hasOwn(TARGETS, target) ? target : "rust";
  const { text, lines } = settings ? code(known, settings, row, winner) : { text: "", lines: ["These settings are refused, so there is nothing to copy."] };
  at("code").textContent = text;
  at("code").hidden = at("copy-code").disabled = !text;
  at("differences").replaceChildren(...lines.map((line) => h("li", {}, line)));
  for (const button of document.querySelectorAll("#targets button")) button.setAttribute("aria-pressed", String(button.dataset.target === known));
}
