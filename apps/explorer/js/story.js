// What does sampling do, in two minutes? Five acts, one screen each, over a row of the page and by its core: the row, the temperature, the cuts,
// the race, and a thousand races.
import { draws, trace } from "./core.js";
import { at, count, h, percent } from "./dom.js";
import { DRAWS } from "./draws.js";
import { NEUTRAL } from "./parameters.js";
import { shown } from "./rows.js";

/** How many tokens are shown, and how long the race and the thousand last. */
const SHOWN = 10;
const RACE_MS = 2500;
const PILE_MS = 4000;

let [act, playing, row] = [0, 0, undefined];
/** What the visitor has set in the acts. */
let told = { temperature: 0.8, top_p: 0.7, seed: 7 };
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

/** A line for each token: its text, a bar, a figure. */
function lines(tokens, line) {
  at("act").replaceChildren(h("table", {}, h("caption", { class: "unseen" }, "Tokens"), h("tbody", {}, ...tokens.map((token) => {
    const { share, figure, kind = "", mark } = line(token);
    return h("tr", { class: kind }, h("th", { scope: "row", class: "word" }, token.name ?? shown(row, token.id)),
      h("td", { class: "track", "aria-hidden": "true" }, h("i", { class: "after", style: `width:${100 * Math.min(1, Math.max(0, share))}%` }), mark === undefined ? null : h("i", { class: "before", style: `width:${100 * mark}%` })),
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
    says: "A language model writes one token after the other; a token is a word or a piece of one. It has read the words above, and gives each token that it knows a number, its logit: the larger, the better the token fits next. These are the ten largest; the dot stands for a space.",
    begin: () => traced((trace) => {
      const tokens = trace.tokens.slice(0, SHOWN);
      const [top, low] = [tokens[0].logit, tokens.at(-1).logit - 1];
      lines(tokens, ({ logit }) => ({ share: (logit - low) / (top - low), figure: logit.toFixed(2) }));
      at("act-result").textContent = `${count(trace.candidates)} numbers in all. The model's part ends here: which token comes next is decided by what follows.`;
    }, { temperature: 1, top_p: 1 }),
  },
  {
    title: "Temperature",
    says: "The numbers become chances, which add up to 100 %. The temperature says how far apart: each number is first divided by it. Move it to the left, and the best token takes nearly all; to the right, and the others catch up.",
    begin: () => slider("temperature", "Temperature", 0.1, 2, 0.05, () => traced((trace) => {
      lines(trace.tokens.slice(0, SHOWN), ({ p }) => ({ share: p, figure: percent(p) }));
      const most = trace.tokens.slice(0, SHOWN).reduce((sum, { p }) => sum + p, 0);
      at("act-result").textContent = `These ten have ${percent(most)}; all other tokens share the rest, ${percent(1 - most)}.`;
    }, { top_p: 1 })),
  },
  {
    title: "The cuts",
    says: "The tokens further down are unlikely, but there are thousands, and a single one that does not fit can spoil a text. Top-p cuts them off: it goes down the list and keeps tokens until they hold this share of the chances together. Top-k keeps a fixed number of tokens instead, min-p those that are not much less likely than the best.",
    begin: () => slider("top_p", "Top-p", 0.05, 1, 0.01, () => traced((trace) => {
      const top = trace.tokens[0].p_kept;
      lines(trace.tokens.slice(0, SHOWN), ({ p, p_kept, place }) => (place < trace.kept.end ? { share: p_kept / top, figure: percent(p_kept) } : { share: p / top, figure: "cut off", kind: "gone" }));
      at("act-result").textContent = `${count(kept(trace))} of ${count(trace.candidates)} tokens are kept, which had ${percent(trace.tokens[0].p / top)} together. Their chances are stretched to 100 % again.`;
    })),
  },
  {
    title: "The race",
    says: "One of the tokens that were kept is drawn, by a race. Each runs at a speed that is its chance, over a distance that is random. The first one home is the next token: the likely ones mostly win, and not always.",
    begin() {
      const race = () => traced((trace) => {
        if (!trace.race) return void (at("act-result").textContent = "Only one token is left, so there is no race.");
        const field = trace.race.field.map(({ id, y, arrival }) => ({ id, time: arrival * 2 ** -y })).sort((one, other) => one.time - other.time);
        const order = new Map(trace.tokens.map(({ id }, place) => [id, place]));
        const runners = field.slice(0, SHOWN).sort((one, other) => (order.get(one.id) ?? SHOWN ** 9) - (order.get(other.id) ?? SHOWN ** 9));
        const won = field[0].time;
        lines(runners, () => ({ share: 0, figure: "" }));
        const bars = at("act").querySelectorAll("i.after");
        at("act-result").textContent = "";
        play(RACE_MS, (share) => {
          runners.forEach(({ time }, lane) => (bars[lane].style.width = `${Math.min(100, (100 * share * won) / time)}%`));
          if (share < 1) return;
          runners.forEach(({ id }, lane) => bars[lane].closest("tr").classList.toggle("won", id === trace.winner.id));
          at("act-result").textContent = `\u201c${shown(row, trace.winner.id)}\u201d wins, with a chance of ${percent(trace.winner.p_kept)}. All distances come from one number, the seed, which is ${told.seed} here: the same seed gives the same winner again, on every machine.`;
        });
      }, {}, false);
      const again = () => ((told = { ...told, seed: told.seed + 1 }), race());
      at("act-control").replaceChildren(
        h("button", { type: "button", id: "act-same", onclick: race }, "The same seed again"), " ",
        h("button", { type: "button", id: "act-again", onclick: again }, "Another seed"));
      race();
    },
  },
  {
    title: "A thousand races",
    says: "Is that fair? Here are a thousand races over the same row, each over new distances. The grey bars are the chances: each token wins about as often as its chance says.",
    async begin() {
      at("act-control").replaceChildren();
      at("act-result").textContent = "";
      const mine = act;
      const drawn = await draws(row, settings(), DRAWS, () => mine !== act);
      traced((trace) => {
        if (mine !== act) return;
        const tokens = trace.tokens.slice(0, Math.min(SHOWN, kept(trace)));
        const top = Math.max(...tokens.map(({ p_kept }) => p_kept)) * 1.15;
        lines(tokens, ({ p_kept }) => ({ share: 0, figure: "0", mark: p_kept / top }));
        const all = at("act").querySelectorAll("tr");
        play(PILE_MS, (share) => {
          const done = Math.round(share * DRAWS);
          const times = new Map();
          for (const id of drawn.slice(0, done)) times.set(id, (times.get(id) ?? 0) + 1);
          tokens.forEach(({ id }, lane) => {
            all[lane].querySelector("i.after").style.width = `${(100 * (times.get(id) ?? 0)) / Math.max(1, done) / top}%`;
            all[lane].querySelector(".figure").textContent = count(times.get(id) ?? 0);
          });
          if (share === 1) at("act-result").textContent = `${count(DRAWS)} races: ${tokens.slice(0, 3).map(({ id, p_kept }) => `\u201c${shown(row, id)}\u201d won ${count(times.get(id) ?? 0)}, its chance is ${percent(p_kept)}`).join("; ")}. That is sampling. With the new token at its end, the model reads its text again, and the next row comes.`;
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
  at("act-next").textContent = place === ACTS.length - 1 ? "To the page" : "Next";
  at("act-control").replaceChildren();
  at("act").replaceChildren();
  at("act-result").textContent = "";
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
    at("act-context").textContent = row.prompt + row.said;
    at("story").hidden = false;
    at("page").hidden = true;
    show(0);
  });
  at("act-back").addEventListener("click", () => show(act - 1));
  at("act-next").addEventListener("click", () => (act === ACTS.length - 1 ? end() : show(act + 1)));
  at("story-end").addEventListener("click", end);
  at("story").addEventListener("keydown", (event) => event.key === "Escape" && end());
}
