// Where do the decisions about two rows part? Stage by stage, from what the core has said of each; nothing is sampled here.

/**
 * @typedef {{ids: number[], count: number}} Lone ids that one side alone has, the likeliest of them and their number
 * @typedef {{name: string, parts: boolean, value?: [any, any], kept?: [number, number], lone?: [Lone, Lone], differ?: number, largest?: number, at?: number}} Stage
 * `parts` says whether it chooses otherwise; `differ` logits differ, by `largest` at most, at the id `at`, where both are above minus infinity.
 * @typedef {{stages: Stage[], first: Stage | undefined, traces: [any, any], tokens: any[][], crossed: number | undefined}} Parting
 * `tokens` describes each token that was drawn on both sides, `crossed` is what the first row draws by the other's settings and ids.
 */

/** How many lone ids are named. */
const NAMED = 6;

/** How far rows are apart. */
function apart(one, other) {
  let [differ, largest, at] = [0, 0, -1];
  for (let id = 0; id < Math.max(one.length, other.length); id++) {
    const [z, w] = [one[id] ?? -Infinity, other[id] ?? -Infinity];
    if (z === w) continue;
    differ += 1;
    const by = Math.abs(z - w);
    if (by > largest && by < Infinity) [largest, at] = [by, id];
  }
  return { differ, largest, at };
}

/** What each of two sets of ids has alone. @returns {[Lone, Lone]} */
function lone(one, other) {
  const size = 1 + [one, other].reduce((most, ids) => ids.reduce((most, id) => Math.max(most, id), most), 0);
  const alone = (ids, others) => {
    const has = new Uint8Array(size);
    for (const id of others) has[id] = 1;
    const found = { ids: [], count: 0 };
    for (const id of ids) if (!has[id] && ++found.count <= NAMED) found.ids.push(id);
    return found;
  };
  return [alone(one, other), alone(other, one)];
}

const some = (pair) => pair[0].count + pair[1].count > 0;

/** Pairs the filters of both sides by their names, in the order in which they act; one that a side lacks stands alone. */
function paired(one, other) {
  const pairs = [];
  const has = (filters, { name }) => filters.some((filter) => filter.name === name);
  for (let [i, j] = [0, 0]; i < one.length || j < other.length; ) {
    if (i < one.length && j < other.length && one[i].name === other[j].name) pairs.push([one[i++], other[j++]]);
    else if (i < one.length && (j === other.length || !has(other.slice(j), one[i]) || has(one.slice(i), other[j]))) pairs.push([one[i++], undefined]);
    else pairs.push([undefined, other[j++]]);
  }
  return pairs;
}

/**
 * Compares two sides. Each has its `trace`, `raw` and `edits`: the logits `z` as they came or after the edits, the `ids` that may be drawn, and
 * as many of them as the filters cut among in their order, `top`. `crossed` is what the other side's settings and ids make of the first row.
 * @returns {Parting}
 */
export function parting(one, other, crossed) {
  const sides = [one, other];
  const traces = sides.map(({ trace }) => trace);
  const stages = [];
  const raw = lone(one.raw.ids, other.raw.ids);
  stages.push({ name: "row", parts: some(raw), lone: raw, ...apart(one.raw.z, other.raw.z) });
  const own = apart(one.edits.z, crossed.edits.z).differ > 0 || some(lone(one.edits.ids, crossed.edits.ids));
  stages.push({ name: "edits", parts: own, value: traces.map(({ edits }) => edits.changed), lone: lone(one.edits.ids, other.edits.ids), ...apart(one.edits.z, other.edits.z) });
  const temperatures = traces.map(({ temperature }) => temperature.in_use);
  stages.push({ name: "temperature", parts: temperatures[0] !== temperatures[1], value: temperatures });

  let ranges = sides.map(({ edits }) => [0, edits.ids.length]);
  const cut = (name, value) => {
    const sets = sides.map(({ edits: { ids, top } }, side) => (ranges[side][0] === 0 && ranges[side][1] === ids.length ? ids : top.subarray(...ranges[side])));
    const only = lone(...sets);
    stages.push({ name, parts: some(only), value, kept: sets.map((set) => set.length), lone: only });
  };
  for (const pair of paired(one.trace.filters, other.trace.filters)) {
    ranges = pair.map((filter, side) => filter?.kept ?? ranges[side]);
    cut(pair.find(Boolean).name, pair.map((filter) => filter?.value));
  }
  // Filters that act on the same row leave what all of them keep.
  const kept = traces.map(({ kept }) => [kept.first, kept.end]);
  if (String(kept) !== String(ranges) && temperatures.every((t) => t > 0)) {
    ranges = kept;
    cut("kept");
  }

  const words = traces.map(({ seed, position, draw }) => ({ seed, position, draw }));
  stages.push({ name: "arrivals", parts: JSON.stringify(words[0]) !== JSON.stringify(words[1]), value: words });
  const drawn = traces.map(({ winner }) => winner?.id);
  stages.push({ name: "race", parts: drawn[0] !== drawn[1], value: drawn });
  return { stages, first: stages.find(({ parts }) => parts), traces, tokens: crossed.tokens, crossed: crossed.drawn };
}
