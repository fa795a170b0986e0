// What does sampling do, in two minutes? Five acts, one screen each, over a row of the page and by its core: the row, the temperature, the cut,
// the race, and a thousand races.
import { draws, trace } from "./core.js";
import { at, count, h, head, percent } from "./dom.js";
import { DRAWS } from "./draws.js";
import { NEUTRAL } from "./parameters.js";
import { shown } from "./rows.js";

/** How many tokens are shown, and how long the race and the thousand last. */
const SHOWN = 10;
const RACE_MS = 2500;
const PILE_MS = 4000;

let [act, playing, row] = [0, 0, undefined];
/** What the visitor has set in the acts. */
let told = { temperature: 0.8, top_p: 0.6, seed: 7 };
const settings = (more = {}) => ({ ...NEUTRAL, ...told, ...more });
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Calls `frame` with shares from 0 to 1 for so long. */
function play(lasts, frame) {
  cancelAnimationFrame(playing);
  if (still()) return frame(1);
  const began = performance.now();
  const step = (now) => {
    const share = Math.min(1, Math.max(0, now - began) / lasts);
    frame(share);
    if (share < 1) playing = requestAnimationFrame(step);
  };
  playing = requestAnimationFrame(step);
}

/** Ends the text above an act with a token, or without one. */
const endText = (end = "") => at("act-context").replaceChildren(row.prompt + row.said, end && h("mark", {}, end));

/** A line for each token: its text, a bar, a figure. The bars of a race end at a line. */
function lines(tokens, line, race = false) {
  at("act").replaceChildren(h("table", { "aria-label": "Tokens", class: race && "racing" }, race && head("!token", "finish", "!place"), h("tbody", {}, ...tokens.map((token) => {
    const { share, figure, kind = "", mark } = line(token);
    return h("tr", { class: kind }, h("th", { scope: "row", class: "word" }, token.name ?? shown(row, token.id)),
      h("td", { class: "track", "aria-hidden": "true" }, h("i", { class: "after", style: `width:${100 * Math.min(1, Math.max(0, share))}%` }), mark === undefined ? null : h("i", { class: "before", style: `width:${100 * Math.min(1, mark)}%` })),
      h("td", { class: "figure" }, figure));
  }))));
}

/** A slider of an act; `shows` is called at once and at each move. */
function slider(name, label, min, max, step, shows) {
  const input = h("input", { type: "range", id: "act-slider", min, max, step, value: told[name] });
  const figure = h("output", { for: "act-slider" });
  const move = () => {
    told = { ...told, [name]: Number(input.value) };
    figure.textContent = ` ${input.value}`;
    input.setAttribute("aria-valuetext", input.value);
    shows();
  };
  input.addEventListener("input", move);
  at("act-control").replaceChildren(h("label", { for: "act-slider" }, label, figure), input);
  move();
}

/** Runs `shows` with the trace of the settings of now, unless another act or setting has come meanwhile. */
async function traced(shows, more, brief = true) {
  const [mine, by] = [act, told];
  const found = await trace(row, settings(more), { brief });
  if (mine === act && by === told) shows(found);
}

const kept = ({ kept }) => kept.end - kept.first;

/** @type {{title: string, says: string, begin(): void}[]} */
const ACTS = [
  {
    title: "The row",
    says: "A language model writes one token after the other; a token is a word, a piece of one, or a mark such as three dots. After the words above it gives every token of its vocabulary a number, called a logit: the larger, the better the token fits next. All these numbers together are called a row. Here are the ten largest; a dot in front stands for a space.",
    begin: () => traced((trace) => {
      const tokens = trace.tokens.slice(0, SHOWN);
      const [top, low] = [tokens[0].logit, Math.min(0, tokens.at(-1).logit - 1)];
      lines(tokens, ({ logit }) => ({ share: (logit - low) / (top - low), figure: logit.toFixed(2) }));
      at("act-result").textContent = `${count(trace.candidates)} numbers in all. The model's part ends here. The next four screens show how one token is picked by them.`;
    }, { temperature: 1, top_p: 1 }),
  },
  {
    title: "Temperature",
    says: "A formula turns the numbers into chances: the larger the number, the larger the chance, and all add up to 100 %. The temperature sets how unequal they are. Before the formula every number is divided by it: a small temperature widens the gaps between the numbers, a large one narrows them. Move the slider to the left, and the first token takes more and more; to the right, and the many others do.",
    begin: () => slider("temperature", "Temperature", 0.1, 2, 0.05, () => traced((trace) => {
      const most = trace.tokens.slice(0, SHOWN).reduce((sum, { p }) => sum + p, 0);
      lines([...trace.tokens.slice(0, SHOWN), { name: "all others", p: 1 - most }], ({ p }) => ({ share: p, figure: percent(p) }));
      at("act-result").textContent = `These ten have ${percent(most)} together.`;
    }, { top_p: 1 })),
  },
  {
    title: "The cut",
    says: "There are thousands of unlikely tokens, and a single one that does not fit can spoil a text. Top-p keeps the likeliest tokens until their chances add up to the share on the slider (0.6 is 60 %), or to more with the last of them. All others are cut off and cannot be picked. What is kept grows to 100 % again: grey bars are the chances before, blue ones after.",
    begin: () => slider("top_p", "Top-p", 0.05, 1, 0.01, () => traced((trace) => {
      const before = trace.tokens[0].p / trace.tokens[0].p_kept;
      lines(trace.tokens.slice(0, SHOWN), ({ p, p_kept, place }) => ({ mark: p, ...(place < trace.kept.end ? { share: p_kept, figure: percent(p_kept) } : { share: 0, figure: "cut off", kind: "gone" }) }));
      at("act-result").textContent = `At temperature ${told.temperature}, ${count(kept(trace))} of ${count(trace.candidates)} tokens are kept: with the last of them their chances reach ${percent(before)}.`;
    })),
  },
  {
    title: "The race",
    says: "One of the tokens that were kept is picked, by a race. The likelier a token, the faster it runs. But each has a track of its own, whose length is random, so that a slow one can win if its track happens to be short. A bar shows how much of its own track a token has behind it. The first at the finish is the next token. The tracks only look random: a recipe makes them from one number, the seed.",
    begin() {
      const race = (word = "wins") => traced((trace) => {
        if (!trace.race) return void (at("act-result").textContent = "Only one token is left, so there is no race.");
        const field = trace.race.field.map(({ id, y, arrival }) => ({ id, time: arrival * 2 ** -y })).sort((one, other) => one.time - other.time);
        const order = new Map(trace.tokens.map(({ id }, place) => [id, place]));
        const runners = field.slice(0, SHOWN).sort((one, other) => (order.get(one.id) ?? SHOWN ** 9) - (order.get(other.id) ?? SHOWN ** 9));
        const won = field[0].time;
        lines(runners, () => ({ share: 0, figure: "" }), true);
        const bars = at("act").querySelectorAll("i.after");
        at("act-result").textContent = "";
        play(RACE_MS, (share) => {
          runners.forEach(({ time }, lane) => (bars[lane].style.width = `${Math.min(100, (100 * share * won) / time)}%`));
          if (share < 1) return;
          runners.forEach(({ id, time }, lane) => {
            const line = bars[lane].closest("tr");
            line.classList.toggle("won", id === trace.winner.id);
            line.querySelector(".figure").textContent = id === trace.winner.id ? "first" : "";
          });
          endText(row.texts?.[trace.winner.id] ?? shown(row, trace.winner.id));
          at("act-result").textContent = `\u201c${shown(row, trace.winner.id)}\u201d ${word}, with a chance of ${percent(trace.winner.p_kept)}. The same seed, here ${told.seed}, and the same chances give the same winner, on every machine.`;
        });
      }, {}, false);
      const again = () => ((told = { ...told, seed: told.seed + 1 }), race());
      at("act-control").replaceChildren(
        h("button", { type: "button", id: "act-same", onclick: () => race("wins again") }, "The same race again"), " ",
        h("button", { type: "button", id: "act-again", onclick: again }, "Another race"));
      race();
    },
  },
  {
    title: "A thousand races",
    says: "Does each token win as often as it should? Here are a thousand races of the same tokens by the same seed, each with a number of its own, from which the seed makes new tracks. The grey bars are the chances, the blue ones the races that a token has won.",
    async begin() {
      at("act-control").replaceChildren();
      at("act-result").textContent = "";
      const mine = act;
      const drawn = await draws(row, settings(), DRAWS, () => mine !== act);
      traced((trace) => {
        if (mine !== act) return;
        const tokens = trace.tokens.slice(0, Math.min(SHOWN, kept(trace)));
        lines(tokens, ({ p_kept }) => ({ share: 0, figure: "0", mark: p_kept }));
        const all = at("act").querySelectorAll("tr");
        play(PILE_MS, (share) => {
          const done = Math.round(share * DRAWS);
          const times = new Map();
          for (const id of drawn.slice(0, done)) times.set(id, (times.get(id) ?? 0) + 1);
          tokens.forEach(({ id }, lane) => {
            all[lane].querySelector("i.after").style.width = `${(100 * (times.get(id) ?? 0)) / Math.max(1, done)}%`;
            all[lane].querySelector(".figure").textContent = count(times.get(id) ?? 0);
          });
          if (share === 1) at("act-result").textContent = `${tokens.slice(0, 2).map(({ id, p_kept }) => `\u201c${shown(row, id)}\u201d won ${count(times.get(id) ?? 0)}, its chance is ${percent(p_kept)}`).join("; ")}: about as often as it should. Picking by chance like this is called sampling. Then the model reads the text with its new token, and gives the next row.`;
        });
      });
    },
  },
];

function show(place) {
  cancelAnimationFrame(playing);
  act = place;
  at("h-act").textContent = `${place + 1}. ${ACTS[place].title}`;
  at("act-says").textContent = ACTS[place].says;
  at("act-place").textContent = `Act ${place + 1} of ${ACTS.length}`;
  at("act-back").disabled = place === 0;
  const last = place === ACTS.length - 1;
  at("act-next").textContent = last ? "To the page" : "Next";
  at("story-end").hidden = last;
  at("act-control").replaceChildren();
  at("act").replaceChildren();
  at("act-result").textContent = "";
  endText();
  ACTS[place].begin();
  at("h-act").focus();
}

/** Lets the story begin at a button; it is told over a row, above the page, which waits. */
export function listenStory(over) {
  const end = () => {
    cancelAnimationFrame(playing);
    at("story").hidden = true;
    at("page").hidden = false;
    at("story-begin").focus();
  };
  at("story-begin").addEventListener("click", () => {
    row = over();
    at("story").hidden = false;
    at("page").hidden = true;
    show(0);
  });
  at("act-back").addEventListener("click", () => show(act - 1));
  at("act-next").addEventListener("click", () => (act === ACTS.length - 1 ? end() : show(act + 1)));
  at("story-end").addEventListener("click", end);
  at("story").addEventListener("keydown", (event) => event.key === "Escape" && end());
}
