// The race run again in this page, with the same arrivals and other settings.

function whatIf(place) {
  const { tokens, leading, rest } = trace.what_if;
  const total = leading + rest.reduce((sum, bucket) => sum + bucket.count, 0);
  const params = trace.params;
  const inRange = (value, from, to) => Math.min(to, Math.max(from, value));
  // Sliders run over 0..1; each knows what it means and how it is written.
  const knobs = [
    { name: "temperature", read: (v) => Math.max(0.05, v * 2.5), set: () => trace.temperature.in_use / 2.5, say: (v) => v.toFixed(2) },
    { name: "top-k", read: (v) => (v > 0.995 ? total : Math.round(Math.exp(v * Math.log(leading)))), set: () => (params.top_k > 0 && params.top_k < total ? Math.log(Math.min(params.top_k, leading)) / Math.log(leading) : 1), say: (v) => (v >= total ? "off" : whole(v)) },
    { name: "top-p", read: (v) => v, set: () => inRange(params.top_p, 0, 1), say: (v) => (v >= 1 ? "off" : v.toFixed(3)) },
    { name: "min-p", read: (v) => (v < 0.005 ? 0 : Math.pow(10, -3 * (1 - v))), set: () => (params.min_p > 0 ? inRange(1 + Math.log10(params.min_p) / 3, 0, 1) : 0), say: (v) => (v === 0 ? "off" : v.toPrecision(2)) },
  ];
  const build = (name, parent, className) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    parent.append(node);
    return node;
  };
  const panel = build("div", place, "knobs");
  for (const knob of knobs) {
    const label = build("label", panel);
    label.append(knob.name);
    knob.output = build("output", label);
    knob.input = build("input", label);
    Object.assign(knob.input, { type: "range", min: 0, max: 1, step: 0.001, value: knob.set() });
    knob.input.addEventListener("input", update);
  }
  const result = build("p", place, "result");
  result.setAttribute("aria-live", "polite");
  const bars = build("div", place, "bars");
  const reset = build("button", place);
  reset.textContent = "Back to the settings of this draw";
  reset.addEventListener("click", () => {
    for (const knob of knobs) knob.input.value = knob.set();
    update();
  });

  function update() {
    const [t, k, p, m] = knobs.map((knob) => {
      const value = knob.read(+knob.input.value);
      knob.output.value = knob.say(value);
      return value;
    });
    const run = race(t, k, p, m);
    result.innerHTML = "";
    const name = build("code", result, "tok");
    name.textContent = word(run.winner);
    const chance = run.kept === 1 ? "the only one left" : `a chance of ${percent(run.chance(run.winner))} among ${whole(run.kept)}`;
    result.append(` wins: rank ${whole(run.winner.place + 1)}, ${chance}.`);
    draw(run);
  }

  // Default filter chain: top-k, top-p of what it left, min-p; then the race.
  function race(t, k, p, m) {
    const weight = (token) => Math.exp((token.z - tokens[0].z) / t);
    const weights = tokens.map(weight);
    let kept = Math.min(k, total), mass = 0;
    for (let i = 0; i < Math.min(kept, leading); i++) mass += weights[i];
    if (kept > leading) for (const bucket of rest) mass += bucket.count * weight(bucket);
    if (p < 1) {
      let sum = 0, n = 0;
      while (n < Math.min(kept, leading) && sum < p * mass) sum += weights[n++];
      for (let i = 0; n >= leading && i < rest.length && sum < p * mass; i++) {
        sum += rest[i].count * weight(rest[i]);
        n += rest[i].count;
      }
      [kept, mass] = [Math.max(1, Math.min(kept, n)), sum];
    }
    if (m > 0) {
      let n = 0, sum = 0;
      while (n < Math.min(kept, leading) && weights[n] >= m) sum += weights[n++];
      if (n < Math.min(kept, leading)) [kept, mass] = [Math.max(1, n), Math.max(sum, weights[0])];
    }
    const running = tokens.filter((token) => token.place < kept);
    const score = (token) => (token.z - tokens[0].z) / t - token.ln_arrival;
    const best = running.reduce((a, b) => (score(b) > score(a) ? b : a));
    return { winner: best, kept, mass, chance: (token) => (token.place < kept ? weight(token) / mass : 0) };
  }

  function draw(run) {
    const shown = tokens.slice(0, 10);
    if (!shown.includes(run.winner)) shown.push(run.winner);
    const most = Math.max(...shown.map(run.chance));
    bars.replaceChildren();
    for (const token of shown) {
      const chance = run.chance(token), state = token === run.winner ? "won" : chance > 0 ? "" : "gone";
      build("span", bars, `n ${state}`).textContent = whole(token.place + 1);
      build("span", bars, `word ${state}`).textContent = word(token);
      build("span", bars, `n logit ${state}`).textContent = token.z.toFixed(2);
      build("span", build("span", bars, `track ${state}`), "bar").style.width = `${(100 * chance) / most}%`;
      build("span", bars, `n ${state}`).textContent = percent(chance);
    }
  }
  update();
}
