// The figures, by the names that the page gives them.

const figures = {};
const winner = trace.winner;
const wins = (token) => winner && token.id === winner.id;

// The tokens that were let through, as balls whose area is their chance, packed outwards from the middle.
figures.balls = (place) => plot(place, (svg, width) => {
  const height = Math.min(420, Math.max(260, width * 0.5));
  const listed = trace.tokens.filter((token) => token.p_kept > 0);
  if (winner && !listed.some(wins)) listed.push(winner);
  const rest = 1 - listed.reduce((sum, token) => sum + token.p_kept, 0);
  const balls = listed.map((token) => ({ token, p: token.p_kept }));
  const others = trace.kept.end - trace.kept.first - listed.length;
  if (others > 0 && rest > 1e-6) balls.push({ others, p: rest });
  balls.sort((a, b) => b.p - a.p);

  // Packed, balls cover about two thirds of the disc around them.
  let unit = Math.sqrt((0.62 * height * Math.min(width, height * 1.7)) / Math.PI);
  for (;;) {
    for (const ball of balls) ball.r = Math.max(2.5, unit * Math.sqrt(ball.p));
    const fits = pack(balls, width, height);
    if (fits || unit < 10) break;
    unit *= 0.93;
  }
  const queue = [];
  for (const ball of balls) {
    const won = ball.token && wins(ball.token);
    const style = won ? "fill:var(--win)" : ball.others
      ? "fill:none;stroke:var(--gone);stroke-dasharray:4 4" : `fill:var(--c${ball.token.id % 8});fill-opacity:.22`;
    const name = ball.others ? `${whole(ball.others)} more` : word(ball.token);
    const group = element("g", {}, element("circle", { cx: ball.x, cy: ball.y, r: ball.r, style }));
    group.append(element("title", {}, `${name}: ${percent(ball.p)}`));
    // As large as fits, within reason; a letter is about 0.62 of its size wide.
    const size = Math.min(26, ball.r * 0.42, (ball.r * 2 - 8) / (0.62 * name.length));
    if (ball.r > 9 && size >= 9) {
      const two = ball.r > 24, fill = won ? "fill:var(--paper);" : "";
      const label = { "text-anchor": "middle", class: "name", style: `${fill}font-size:${Math.max(11, size)}px` };
      group.append(text(ball.x, ball.y + (two ? 0 : 4), name, label));
      if (two) group.append(text(ball.x, ball.y + Math.max(15, size * 0.9 + 4), percent(ball.p), { "text-anchor": "middle", style: fill }));
    } else if (won) {
      // Too small to be written on: a label above or below it.
      const words = `${name} ${percent(ball.p)}`, half = words.length * 3.9 + 9;
      const x = Math.min(width - half, Math.max(half, ball.x)), y = ball.y + (ball.y > 40 ? -ball.r - 26 : ball.r + 6);
      const label = element("rect", { x: x - half, y, width: 2 * half, height: 20, rx: 10, style: "fill:var(--paper);stroke:var(--win)" });
      queue.push(label, text(x, y + 14, words, { "text-anchor": "middle", class: "win" }));
    }
    svg.append(group);
  }
  svg.append(...queue);
  // What a ball is that has no room for a name, said below where it is pointed at or tapped.
  const told = text(width / 2, height + 16, "", { class: "strong", "text-anchor": "middle" });
  for (const group of svg.querySelectorAll("g")) {
    for (const event of ["pointerenter", "click"]) {
      group.addEventListener(event, () => { told.textContent = group.querySelector("title").textContent; });
    }
  }
  svg.append(told);
  return height + 24;
});

// Puts each ball at the free place nearest to the middle, along a spiral; false if one sticks out.
function pack(balls, width, height) {
  const placed = [];
  for (const ball of balls) {
    let found = false;
    for (let step = 0; step < 4000 && !found; step++) {
      const angle = step * 0.35, radius = 1.6 * Math.sqrt(step) * 2;
      ball.x = width / 2 + radius * 1.5 * Math.cos(angle);
      ball.y = height / 2 + radius * Math.sin(angle);
      const inside = ball.x - ball.r > 0 && ball.x + ball.r < width && ball.y - ball.r > 0 && ball.y + ball.r < height;
      found = inside && placed.every((other) => Math.hypot(other.x - ball.x, other.y - ball.y) > other.r + ball.r + 1.5);
    }
    if (!found) return false;
    placed.push(ball);
  }
  return true;
}

// The head of the order as bars.
figures.order = (place) => {
  const shown = trace.tokens.slice(0, 16);
  if (winner && !shown.some(wins)) shown.push(winner);
  const most = Math.max(...shown.map((token) => token.p));
  const cells = [];
  for (const token of shown) {
    const state = wins(token) ? "won" : token.p_kept > 0 || !trace.race ? "" : "gone";
    const cell = (kind, words) => {
      const node = document.createElement("span");
      node.className = `${kind} ${state}`;
      node.textContent = words;
      cells.push(node);
      return node;
    };
    cell("n", token.place === null ? "\u2013" : whole(token.place + 1));
    cell("word", word(token));
    cell("n logit", token.logit === null ? "\u2212\u221e" : token.logit.toFixed(2));
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = `${(100 * token.p) / most}%`;
    cell("track", "").append(bar);
    const [before, after] = [percent(token.p), percent(token.p_kept)];
    cell("n", token.p_kept > 0 && after !== before ? `${before} \u2192 ${after}` : before);
  }
  const bars = document.createElement("div");
  bars.className = "bars";
  bars.append(...cells);
  place.replaceChildren(bars);
};

// Probability by rank at several temperatures.
figures.temperature = (place) => plot(place, (svg, width) => {
  const height = 300, left = 44, right = width - 8, top = 8, bottom = height - 44;
  const used = trace.temperature.in_use;
  const curves = [0.5, 2].filter((t) => Math.abs(t - (used || 1)) > 0.15).map((t) => ({ t, points: curveAt(t) }));
  const main = trace.curve.map(({ place, p }) => [place + 1, p]);
  const last = main[main.length - 1][0];
  const least = Math.max(1e-8, main[Math.min(main.length - 1, main.findIndex(([rank]) => rank > 3000) >>> 0)][1] / 10);
  const x = scale(1, last, left, right, true), y = scale(1, least, top, bottom, true);
  rankAxis(svg, x, last, top, bottom, "rank");
  for (let e = 0; Math.pow(10, e) >= least; e -= 2) {
    const level = Math.pow(10, e);
    svg.append(line(left, y(level), right, y(level)), text(left - 8, y(level) + 4, powerOfTen(e), { "text-anchor": "end" }));
  }
  const visible = (points) => path(points.filter(([, p]) => p >= least).map(([rank, p]) => [x(rank), y(p)]));
  // Each is named where it leaves the plot.
  const named = (words, points, kind) => {
    const [rank, p] = points.findLast(([, p]) => p >= least);
    const edge = p > least * 3;
    svg.append(text(x(rank) - 8, y(p) + (edge ? 16 : -4), words, { class: kind + " halo", "text-anchor": "end" }));
  };
  for (const { points } of curves) svg.append(element("path", { class: "ghost", d: visible(points) }));
  svg.append(element("path", { class: "curve", d: visible(main) }));
  for (const { t, points } of curves) named(`T = ${t}`, points, "");
  named(used > 0 ? `T = ${+used.toFixed(3)}` : "T = 1", main, "strong");
  return height;
});

// The curve at another temperature: exact for the leading tokens, by buckets for the rest.
function curveAt(t) {
  const { tokens, leading, rest } = trace.what_if;
  const first = tokens[0].z;
  const weight = (z) => Math.exp((z - first) / t);
  let sum = 0;
  for (let i = 0; i < leading; i++) sum += weight(tokens[i].z);
  for (const { z, count } of rest) sum += count * weight(z);
  const points = [];
  for (let i = 0; i < leading; i += 1 + (i >> 5)) points.push([i + 1, weight(tokens[i].z) / sum]);
  let rank = leading;
  for (const { z, count } of rest) {
    points.push([rank + count / 2, weight(z) / sum]);
    rank += count;
  }
  return points;
}

// The cumulative probability by rank, and below it what each filter was given and kept.
figures.mass = (place) => plot(place, (svg, width) => {
  const left = 44, right = width - 8, top = 8, bottom = 210, pitch = 40;
  const last = trace.curve[trace.curve.length - 1].place + 1;
  const x = scale(1, Math.max(2, last), left, right, true), y = scale(0, 1, bottom, top);
  const height = bottom + 42 + trace.filters.length * pitch;
  rankAxis(svg, x, Math.max(2, last), top, bottom, "rank");
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(line(left, y(share), right, y(share)), text(left - 8, y(share) + 4, `${share * 100}\u202f%`, { "text-anchor": "end" }));
  }
  const points = trace.curve.map(({ place, cumulative }) => [x(place + 1), y(Math.min(1, cumulative))]);
  svg.append(element("path", { class: "area", d: `${path(points)}L${x(last)} ${bottom}L${left} ${bottom}Z` }));
  svg.append(element("path", { class: "curve", d: path(points) }));
  // A place stands for the room between its rank and the next, so that one token is seen as well.
  const edge = (place) => Math.min(right, x(Math.max(1, place + 0.5)));
  trace.filters.forEach((filter, i) => {
    const hue = `var(--c${i % 8})`, row = bottom + 58 + i * pitch;
    const bar = (from, to, opacity) => svg.append(element("rect", {
      x: edge(from), y: row, width: Math.max(2, edge(to) - edge(from)), height: 12, rx: 2, style: `fill:${hue};opacity:${opacity}`,
    }));
    bar(filter.given[0], filter.given[1], 0.18);
    bar(filter.kept[0], filter.kept[1], 1);
    for (const [cut, given] of [[filter.kept[1], filter.given[1]], [filter.kept[0], filter.given[0]]]) {
      if (cut !== given) {
        const style = `stroke:${hue};stroke-width:1.5;stroke-dasharray:3 3`;
        svg.append(line(edge(cut), top, edge(cut), row + 12, { style }));
      }
    }
    const words = `${filter.name} ${+filter.value.toFixed(4)}: ${whole(filter.kept[1] - filter.kept[0])} of ${whole(filter.given[1] - filter.given[0])}`;
    svg.append(text(left, row - 5, words, { class: "strong halo" }));
  });
  return height;
});

// The first to finish, each on its lane.
figures.lanes = (place) => plot(place, (svg, width) => {
  const leaders = trace.race.leaders.slice(0, 9), pitch = 28, left = Math.min(130, width * 0.3), right = width - 104;
  const time = (token) => Math.pow(2, -token.score);
  const fastest = time(leaders[0]), slowest = time(leaders[leaders.length - 1]);
  const x = scale(fastest * 0.6, Math.max(slowest * 1.1, fastest * 2), left, right, true);
  leaders.forEach((token, i) => {
    const y = 18 + i * pitch, won = i === 0;
    svg.append(line(left, y, right, y));
    svg.append(text(left - 10, y + 4, word(token, Math.floor(left / 9)), { "text-anchor": "end", class: won ? "name win" : "name" }));
    svg.append(line(left, y, x(time(token)), y, { style: `stroke:var(${won ? "--win" : "--blue"});stroke-width:${won ? 3 : 2}` }));
    const dot = element("circle", { cx: x(time(token)), cy: y, r: won ? 7 : 5, style: `fill:var(${won ? "--win" : "--blue"})` });
    dot.append(element("title", {}, `arrival ${token.arrival.toPrecision(3)}, chance ${percent(token.p_kept)}`));
    const late = time(token) / fastest;
    svg.append(dot, text(width, y + 4, won ? "first" : `${late < 100 ? late.toFixed(1) : whole(late)}\u00d7 as long`, { "text-anchor": "end", class: won ? "win" : "" }));
  });
  return 18 + leaders.length * pitch;
});

// Weight against arrival, with the winner's diagonal.
figures.field = (place) => plot(place, (svg, width) => {
  const height = Math.min(440, Math.max(300, width * 0.55)), left = 44, right = width - 12, top = 12, bottom = height - 44;
  const field = trace.race.field, best = trace.race.leaders[0];
  const low = Math.min(-3, Math.max(-40, Math.min(...field.map((runner) => runner.y))) - 1);
  const arrivals = field.map((runner) => Math.log2(runner.arrival));
  const early = Math.min(...arrivals) - 1, late = Math.max(4, ...arrivals) + 0.5;
  const x = scale(low, 0.8, left, right), y = scale(late, early, top, bottom);
  const tens = Math.log2(10), every = (span) => Math.max(1, Math.ceil(span / tens / 6));
  for (let e = 0, step = every(-low); -e * tens >= low; e += step) {
    svg.append(line(x(-e * tens), top, x(-e * tens), bottom), text(x(-e * tens), bottom + 18, powerOfTen(-e), { "text-anchor": "middle" }));
  }
  for (let e = Math.floor(late / tens), step = every(late - early); e * tens >= early; e -= step) {
    svg.append(line(left, y(e * tens), right, y(e * tens)), text(left - 8, y(e * tens) + 4, powerOfTen(e), { "text-anchor": "end" }));
  }
  svg.append(text(right, bottom + 36, "likelier \u2192", { "text-anchor": "end" }), text(left, top + 2, "\u2191 arrives later", { class: "halo" }));
  // Equal scores: log2(arrival) = y - score.
  const at = (weight) => weight - trace.race.best;
  const from = Math.max(low, early + trace.race.best), to = Math.min(0.8, late + trace.race.best);
  const beyond = `M${x(from)} ${y(at(from))}L${x(to)} ${y(at(to))}L${right} ${y(at(to))}L${right} ${bottom}L${x(from)} ${bottom}Z`;
  svg.append(element("path", { d: beyond, style: "fill:var(--win);opacity:.07" }));
  svg.append(line(x(from), y(at(from)), x(to), y(at(to)), { style: "stroke:var(--win);stroke-width:1.5" }));
  for (const runner of field.filter((runner) => runner.y >= low)) {
    const won = runner.id === best.id;
    const dot = element("circle", { cx: x(runner.y), cy: y(Math.log2(runner.arrival)), r: won ? 6.5 : 3, style: `fill:var(${won ? "--win" : "--blue"});opacity:${won ? 1 : 0.45}` });
    dot.append(element("title", {}, `${word(runner)}: arrival ${runner.arrival.toPrecision(3)}`));
    svg.append(dot);
  }
  // The likeliest and the leaders get their names, as long as there is room.
  const named = [], room = width < 500 ? 7 : 14;
  const leading = [best, ...field.slice(0, room), ...trace.race.leaders.slice(1, 5)];
  for (const { id } of leading) {
    const runner = field.find((other) => other.id === id);
    if (!runner || named.some((other) => other.id === id)) continue;
    const spot = { id, x: x(runner.y), y: y(Math.log2(runner.arrival)), width: word(runner, 14).length * 7.4 };
    const end = spot.x + spot.width + 12 > right;
    const near = (other) => Math.abs(other.y - spot.y) < 14 && Math.abs(other.x - spot.x) < Math.max(other.width, spot.width) + 16;
    if (named.some(near)) continue;
    named.push(spot);
    const won = id === best.id;
    svg.append(text(spot.x + (end ? -10 : 10), spot.y + 4, word(runner, 14), { class: `name halo ${won ? "win" : ""}`, "text-anchor": end ? "end" : "start" }));
  }
  return height;
});

// The bounds of the tiles, best first, against the winner's score.
figures.tiles = (place) => plot(place, (svg, width) => {
  const height = 280, left = 44, right = width - 8, top = 32, bottom = height - 40;
  const { bounds, best, open_tiles: opened } = trace.race;
  const finite = bounds.map((tile) => tile.bound).filter((bound) => bound > -200);
  const low = Math.min(best - 4, finite[finite.length - 1]), high = finite[0] + 1;
  const x = scale(0, Math.max(1, bounds.length), left, right), y = scale(high, low, top, bottom);
  const span = high - low, step = span > 60 ? 20 : span > 24 ? 8 : 4;
  for (let score = Math.ceil(low / step) * step; score <= high; score += step) {
    svg.append(line(left, y(score), right, y(score)), text(left - 8, y(score) + 4, score, { "text-anchor": "end" }));
  }
  const thick = Math.max(1.5, Math.min(26, ((right - left) / bounds.length) * 0.7));
  bounds.forEach((tile, i) => {
    const open = tile.bound >= best, to = y(Math.max(low, tile.bound));
    const bar = element("rect", {
      x: x(i + 0.5) - thick / 2, y: to, width: thick, height: Math.max(1, bottom - to), rx: Math.min(2, thick / 3), style: `fill:var(${open ? "--blue" : "--gone"})`,
    });
    bar.append(element("title", {}, `tile ${tile.tile}, ids from ${tile.tile * 256}: at most ${tile.bound.toFixed(2)}`));
    svg.append(bar);
  });
  svg.append(line(left, y(best), right, y(best), { style: "stroke:var(--win);stroke-width:2" }));
  // Above the plot, where no bar strikes it through.
  svg.append(text(right, 14, `the winner\u2019s score, ${best.toFixed(2)}`, { "text-anchor": "end", class: "win" }));
  svg.append(text(left, bottom + 22, `${whole(opened)} opened`, { style: "fill:var(--blue);font-weight:600" }));
  if (bounds.length > opened) svg.append(text(right, bottom + 22, `${whole(trace.race.tiles - opened)} skipped`, { "text-anchor": "end" }));
  return height;
});
