// Why does the other one draw another token? Two rows, or two settings, side by side, and the stage at which they part.
import { at, count, h, head, percent } from "./dom.js";
import { FILTERS, NEUTRAL } from "./parameters.js";
import { shown } from "./rows.js";

/** The settings in words: those that are not neutral. */
export function words(settings) {
  const set = Object.entries(settings).filter(([name, value]) => value !== NEUTRAL[name] && name !== "seed" && name !== "draw");
  return set.map(([name, value]) => `${name} ${value}`).join(", ") || "neutral";
}

const short = (value) => String(Number(value.toPrecision(3)));
const SIDES = ["now", "the other"];
const ALONE = ["Now", "The other"];
const TITLES = { row: "The row", edits: "Penalties and bans", temperature: "Temperature", kept: "What all filters keep", arrivals: "Seed and position", race: "The race" };
const title = ({ name, value }) => TITLES[name] ?? [FILTERS[name]?.[0] ?? name, ...new Set(value.map((one) => (one === undefined ? "off" : String(Number(one.toFixed(4))))))].join(" / ").replace(" / ", " ");

/** Says what each side alone has. */
function loners(row, lone, has) {
  return lone.map(({ ids, count: all }, side) => {
    if (!all) return "";
    const names = ids.map((id) => `\u201c${shown(row, id)}\u201d`).join(", ");
    return ` ${ALONE[side]} alone ${has} ${names}${all > ids.length ? ` and ${count(all - ids.length)} more` : ""}.`;
  }).join("");
}

/** What happened at a stage, in words. */
const told = {
  row: ({ differ, largest, at, lone }, row) => (differ ? `${count(differ)} logits differ, by ${short(largest)} at most${at >= 0 ? ` (\u201c${shown(row, at)}\u201d)` : ""}.${loners(row, lone, "has a number for")}` : "All logits are the same."),
  edits({ value, differ, largest, lone, parts }, row) {
    if (!value[0] && !value[1]) return "They change nothing.";
    const after = differ ? ` After them ${count(differ)} logits differ, by ${short(largest)} at most.` : "";
    return `They change ${count(value[0])} logits now, ${count(value[1])} in the other${parts ? ", and not alike" : ""}.${after}${loners(row, lone, "may draw")}`;
  },
  temperature: ({ value, parts }) => (parts ? `${short(value[0])} now, ${short(value[1])} in the other.` : `${short(value[0])} in both.`),
  arrivals: ({ value: [one, other], parts }) => (parts ? `Their random numbers are others: ${["seed", "position", "draw"].filter((name) => one[name] !== other[name]).map((name) => `${name} ${one[name]} now, ${other[name]} in the other`).join("; ")}.` : `Both draw by the same random numbers: seed ${one.seed}, position ${one.position}.`),
  race({ value, parts }, row) {
    const [one, other] = value.map((id) => (id === undefined ? "no token" : `\u201c${shown(row, id)}\u201d`));
    return parts ? `${one} wins now, ${other} in the other.` : `${one} wins in both.`;
  },
};
const filtered = ({ kept, lone, parts }, row) => (parts ? `${count(kept[0])} ${kept[0] === 1 ? "token stays" : "tokens stay"} now, ${count(kept[1])} in the other.${loners(row, lone, "keeps")}` : `The same ${kept[0] === 1 ? "token stays" : `${count(kept[0])} tokens stay`} in both.`);

/** What the distance of the rows says, beside the radius of the token of now. */
function firm({ stages: [row], traces: [trace] }) {
  if (!row.differ || row.parts || !trace.winner) return "";
  const apart = `the rows are ${short(row.largest)} apart at most`;
  if (!trace.radius) return ` No radius is known for the token of now; ${apart}.`;
  const verdict = row.largest < trace.radius ? "less than that, so the rows alone do not change the token" : "which is enough to change it";
  return ` The token of now stays while every logit moves by less than its radius, ${short(trace.radius)}; ${apart}, ${verdict}.`;
}

/** Whether the row is the reason, or what else differs. */
function reason({ stages, traces: [one, other], crossed }, row, isOtherwise) {
  if (!stages[0].differ || !isOtherwise || one.winner?.id === other.winner?.id) return "";
  const drawn = crossed === undefined ? "no token" : `\u201c${shown(row, crossed)}\u201d`;
  const why = crossed === other.winner?.id ? "so the row is not the reason" : crossed === one.winner?.id ? "so the row is the reason" : "so both the row and these are";
  return ` By the other's settings and ids the row of now draws ${drawn}, ${why}.`;
}

/** Both tokens on both sides: what each had to win by. */
function contest({ tokens, traces }, row) {
  const lines = tokens.flatMap((sides) => {
    const { id } = sides.find(Boolean);
    return sides.map((token, side) => {
      const cells = token ? [token.logit?.toFixed(3) ?? "banned", token.p_kept > 0 ? percent(token.p_kept) : "out", token.score?.toFixed(3) ?? "-"] : ["not there", "-", "-"];
      return h("tr", { class: traces[side].winner?.id === id ? "won" : "" }, h("th", { scope: "row", class: "word" }, shown(row, id)), h("td", { class: "figure" }, SIDES[side]), ...cells.map((cell) => h("td", { class: "figure" }, cell)));
    });
  });
  return h("table", { id: "contest" }, h("caption", { class: "unseen" }, "The tokens drawn, on both sides"), head("token", "where", "logit", "share", "score"), h("tbody", {}, ...lines));
}

/** Shows where two sides part, each a row and its settings; nothing but an invitation where there is no second one. */
export function showCompare(one, other, parting) {
  if (!other) return at("compare").replaceChildren(h("p", {}, "Pin the settings of now, then move the sliders, or bring a second row: both answers appear here, and where they part."));
  const { row } = one;
  const [a, b] = parting.traces;
  const side = (title, trace, { row: shownRow, settings }) => h("div", { class: "side" }, h("h3", {}, title), h("p", {}, other.row === row ? words(settings) : `${shownRow.name}: ${words(settings)}`),
    h("p", { class: "big" }, trace.winner ? shown(row, trace.winner.id) : "no token"),
    h("p", {}, `${count(trace.kept.end - trace.kept.first)} tokens kept, ${percent(trace.kept.share)} of the probability; entropy ${trace.temperature.entropy_in_use_bits.toFixed(2)} bits.`));
  const [mine, theirs] = [a, b].map(({ tokens }) => new Map(tokens.map((token) => [token.id, token])));
  const ids = [...new Set([...a.tokens.slice(0, 12), ...b.tokens.slice(0, 12)].map((token) => token.id))];
  const share = (map, id) => (map.has(id) ? (map.get(id).p_kept > 0 ? percent(map.get(id).p_kept) : "out") : "behind place 40");
  const shares = h("table", {}, h("caption", { class: "unseen" }, "Shares of the likeliest tokens"), head("token", ...SIDES),
    h("tbody", {}, ...ids.map((id) => h("tr", {}, h("th", { scope: "row", class: "word" }, shown(row, id)), h("td", { class: "figure" }, share(mine, id)), h("td", { class: "figure" }, share(theirs, id))))));
  const isOtherwise = JSON.stringify([one.settings, row.ids, row.output]) !== JSON.stringify([other.settings, other.row.ids, other.row.output]);
  const { first } = parting;
  const verdict = `${a.winner?.id === b.winner?.id ? "Both draw the same token." : "They draw different tokens."}${first ? ` They part first at: ${title(first)}.` : ""}`;
  const stages = parting.stages.map((stage) => h("li", { class: stage === first ? "first" : "", "data-stage": stage.name },
    h("strong", {}, `${title(stage)}:`), ` ${(told[stage.name] ?? filtered)(stage, row)}`));
  at("compare").replaceChildren(h("p", { id: "verdict" }, h("strong", {}, verdict), reason(parting, row, isOtherwise), firm(parting)),
    h("div", { class: "sides" }, side("Now", a, one), side(other.row === row ? "Pinned, on the seed of now" : "The other, on the seed of now", b, other)),
    h("ol", { id: "stages" }, ...stages), h("h3", {}, "What each token had to win by"), contest(parting, row), h("h3", {}, "Shares"), shares);
}
