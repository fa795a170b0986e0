// Does the page work, opened as a file? `node bindings/explorer/tests/browser.mjs PAGE FOLDER` asks it in headless Chromium, and leaves
// pictures at three widths in FOLDER. Exits with 77 where there is no browser.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import * as gumball from "../../wasm/pkg/node.js";
import { gunzipSync } from "node:zlib";
import { browser } from "./chromium.mjs";

const [page, folder] = process.argv.slice(2);
const address = pathToFileURL(resolve(page)).href;
const chromium = await browser();
if (!chromium) {
  console.error("bindings/explorer/tests/browser.mjs: no browser (Debian's package chromium); skipped");
  process.exit(77);
}
const { ask, events } = chromium;
const limit = setTimeout(() => {
  console.error("the browser has said nothing for 180 s");
  chromium.close();
  process.exitCode = 1;
}, 180_000);

async function evaluate(expression) {
  const { result, exceptionDetails } = await ask("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
/** Waits until the page has shown everything. */
async function settled() {
  await pause(60);
  for (let n = 0; n < 160; n++) {
    if (await evaluate("document.body?.dataset.ready === 'yes'").catch(() => false)) return;
    await pause(50);
  }
  throw new Error(`the page does not come to rest: ${await evaluate("document.getElementById('loading')?.textContent")}`);
}
/** Opens a state, as a link does. */
async function open(hash) {
  await ask("Page.navigate", { url: "about:blank" });
  await pause(50);
  await ask("Page.navigate", { url: address + hash });
  await settled();
}
const text = (id) => evaluate(`document.getElementById(${JSON.stringify(id)}).textContent`);
const set = async (id, value, event = "change") => {
  await evaluate(`{ const e = document.getElementById(${JSON.stringify(id)}); e.value = ${JSON.stringify(value)}; document.body.dataset.ready = "no"; e.dispatchEvent(new Event("${event}", { bubbles: true })); }`);
  await settled();
};
const click = async (selector) => {
  await evaluate(`document.body.dataset.ready = "no"; document.querySelector(${JSON.stringify(selector)}).click()`);
  await settled();
};

/** The recorded rows, read without the page's own code. */
const bytes = gunzipSync(readFileSync(join(import.meta.dirname, "../rows/smollm2.rows.gz")));
const length = bytes.readUInt32LE(0);
const told = JSON.parse(bytes.subarray(4, 4 + length));
const recorded = (index) => Uint16Array.from({ length: told.vocab }, (_, id) => (bytes[4 + length + 2 * index * told.vocab + id] << 8) | bytes[4 + length + (2 * index + 1) * told.vocab + id]);

const tests = {
  async "each of the twelve rows gives the sampler's token"() {
    for (let index = 0; index < 12; index++) {
      await open(`#row=${index}&temperature=0.9&top_k=80&repetition_penalty=1.1&seed=${index + 3}`);
      const { ids, output } = told.rows[index];
      const sampler = new gumball.Sampler({ temperature: 0.9, top_k: 80, repetition_penalty: 1.1, seed: index + 3 }, told.vocab, { prompt: ids });
      for (const id of output) sampler.push(id);
      const expected = sampler.sample(recorded(index), { dtype: "float16" });
      assert.equal(Number(await evaluate("document.getElementById('winner').dataset.id")), expected, told.rows[index].name);
    }
  },
  async "a slider changes the answer and the link, and the link brings it back"() {
    await open("#view=tune&row=2&temperature=1.2&seed=11");
    await set("p-top_k", "100", "input");
    const [hash, said] = [await evaluate("location.hash"), await text("sentence")];
    assert.match(hash, /top_k=\d+/);
    await open(hash);
    assert.equal(await text("sentence"), said);
    assert.equal(await evaluate("location.hash"), hash);
  },
  async "why not names the filter that drops a token"() {
    await open("#view=tune&row=1&temperature=1&top_k=5&why=banana");
    assert.match(await text("why-says"), /Top-k drops it/);
    await open("#view=tune&row=1&temperature=1&banned_ids=7042&why=%237042");
    assert.match(await text("why-says"), /is banned/);
  },
  async "the first view tells of settings that it has no control for"() {
    await open("#row=8&repetition_penalty=1.5");
    assert.match(await text("hidden-settings"), /repetition_penalty 1\.5/);
  },
  async "a refused setting is said with its parameter, and a good one clears it"() {
    await open("#view=tune&row=0&mirostat_tau=3&top_p=0.5");
    assert.match(await text("error"), /mirostat|top_p/);
    assert.equal(await evaluate("document.getElementById('error').hidden"), false);
    await click("#neutral");
    assert.equal(await evaluate("document.getElementById('error').hidden"), true);
  },
  async "penalties show what they changed"() {
    await open("#view=tune&row=8&repetition_penalty=1.5&no_repeat_ngram=3");
    assert.match(await text("edits"), /Repetition penalty: \d+ logits/);
    assert.match(await text("edits"), /No repeated n-gram/);
  },
  async "a thousand draws add up and two settings are compared"() {
    await open("#view=tune&row=3&temperature=1&top_k=10");
    const drawn = await evaluate("[...document.querySelectorAll('#draws tbody tr')].reduce((sum, line) => sum + Number(line.children[3].textContent.replace(/\\D/g, '')), 0)");
    assert.equal(drawn, 1000);
    await click("#pin");
    assert.equal(await text("verdict"), "Both draw the same token.");
    await set("p-temperature", "0", "input");
    assert.match(await evaluate("location.hash"), /compare=1&b\.top_k=10/);
  },
  async "the race plays to its end"() {
    await open("#row=2&temperature=1");
    await evaluate("document.getElementById('play').click()");
    await pause(700);
    assert.ok((await evaluate("[...document.querySelectorAll('#race circle')].filter((dot) => dot.style.opacity === '0').length")) > 0);
    await pause(4500);
    assert.equal(await evaluate("[...document.querySelectorAll('#race circle')].filter((dot) => dot.style.opacity === '0').length"), 0);
  },
  async "copy as knows the differences"() {
    await open("#view=tune&row=0&temperature=0.7&top_p=0.9&min_p=0.1&copy=vllm");
    assert.match(await text("code"), /vllm\.SamplingParams\(.*temperature=0\.7.*\)/);
    assert.match(await text("differences"), /min-p before top-k/);
    for (const target of ["rust", "python", "sglang", "llama", "transformers"]) {
      await click(`[data-target=${target}]`);
      assert.match(await text("code"), /0\.9/, target);
    }
  },
  async "a seed above 2^53 is drawn from and said whole"() {
    const seed = 18446744073709551615n;
    await open(`#row=2&temperature=1&seed=${seed}`);
    const sampler = new gumball.Sampler({ seed }, told.vocab, { prompt: told.rows[2].ids });
    assert.equal(Number(await evaluate("document.getElementById('winner').dataset.id")), sampler.sample(recorded(2), { dtype: "float16" }));
    assert.match(await text("sentence"), new RegExp(`Seed ${seed} `));
  },
  async "the order of filters is copied by the names of each language"() {
    await open("#view=tune&temperature=1&top_k=9&top_p=0.5&min_p=0.1&order=min_p,top_k,top_p&dry_multiplier=0.5&mirostat_eta=0.2");
    assert.match(await text("code"), /FilterOrder::List\(vec!\[Filter::MinP, Filter::TopK, Filter::TopP\]\)/);
    assert.match(await text("code"), /dry: Dry \{ multiplier: 0\.5, base: 1\.75, allowed_length: 2, \.\.Default::default\(\) \}/);
    await click("[data-target=python]");
    assert.match(await text("code"), /order=\["min_p", "top_k", "top_p"\]/);
  },
  async "top-a and p-less reach the core and the code"() {
    await open("#view=debug&row=2&temperature=1.5&top_a=0.25&p_less=true");
    const says = await text("filters");
    assert.match(says, /Top-a/);
    assert.match(says, /P-less/);
    const params = { seed: 7, temperature: 1.5, top_a: 0.25, p_less: true };
    const sampler = new gumball.Sampler(params, told.vocab, { prompt: told.rows[2].ids });
    assert.equal(Number(await evaluate("document.getElementById('winner').dataset.id")), sampler.sample(recorded(2), { dtype: "float16" }));
    assert.match(await text("code"), /top_a: 0\.25,\s+p_less: true/);
  },
  async "bad words, breakers and mirostat's limit reach the core and the code"() {
    await open("#view=debug&row=9&dry_multiplier=1&dry_breakers=28&bad_words=7042%3B12+5&mirostat_tau=3&mirostat_mu=4&why=%237042");
    assert.match(await text("why-says"), /is banned/);
    assert.match(await text("filters"), /at most 4 bits/);
    assert.match(await text("code"), /breakers: vec!\[28\].*\n?/);
    assert.match(await text("code"), /bad_words: vec!\[vec!\[7042\], vec!\[12, 5\]\]/);
    assert.match(await text("code"), /mu: Some\(4\.0\)/);
  },
  async "a pasted row is drawn from, travels in the link, and a wrong one is refused"() {
    await open("#view=tune");
    await evaluate("document.getElementById('paste').value = '[1, 5, null, 2.5]'");
    await click("#take");
    assert.match(await text("sentence"), /of 3 tokens/);
    const hash = await evaluate("location.hash");
    await open(hash);
    assert.match(await text("sentence"), /of 3 tokens/);
    await evaluate("document.getElementById('paste').value = '1, x'; document.getElementById('take').click()");
    assert.match(await text("bring-says"), /Number 1 is "x"/);
  },
  async "a .npy file is read"() {
    await open("#view=tune");
    const header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".padEnd(117) + "\n";
    const file = Buffer.concat([Buffer.from([0x93, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]), Buffer.from(header), Buffer.from(Float32Array.of(9, 1, 0, 4, 4, 4).buffer)]);
    await evaluate(`{ const bytes = Uint8Array.from(${JSON.stringify([...file])}); const list = new DataTransfer(); list.items.add(new File([bytes], "row.npy")); document.getElementById("file").files = list.files; document.getElementById("file").dispatchEvent(new Event("change")); }`);
    await pause(200);
    await settled();
    assert.match(await text("bring-says"), /3 logits are in/);
  },
  async "arrow keys move a slider by its step"() {
    await open("#row=0&temperature=1&seed=3");
    await evaluate("document.getElementById('p-temperature').focus()");
    await ask("Input.dispatchKeyEvent", { type: "keyDown", key: "ArrowRight", code: "ArrowRight" });
    await settled();
    assert.match(await evaluate("location.hash"), /temperature=1\.01/);
  },
  async "every control has a name, every id is there once"() {
    for (const view of ["learn", "tune", "debug"]) {
      await open(`#view=${view}`);
      const unnamed = await evaluate("[...document.querySelectorAll('input, select, textarea, button')].filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML)");
      assert.deepEqual(unnamed, []);
      assert.deepEqual(await evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, n, all) => all.indexOf(id) !== n)"), []);
    }
  },
  async "no width makes the page scroll sideways; pictures are taken"() {
    for (const width of [390, 820, 1440]) {
      for (const [name, view, scheme] of [["learn", "learn", "light"], ["debug", "debug", "dark"]]) {
        await ask("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: width < 500 });
        await ask("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
        await open(`#view=${view}&row=8&temperature=0.9&top_p=0.95&min_p=0.02&repetition_penalty=1.3&seed=5&why=cat`);
        assert.ok((await evaluate("document.documentElement.scrollWidth")) <= width, `${view} at ${width}`);
        const { data } = await ask("Page.captureScreenshot", { captureBeyondViewport: true });
        writeFileSync(join(folder, `${name}-${width}.png`), Buffer.from(data, "base64"));
        const head = await ask("Page.captureScreenshot");
        writeFileSync(join(folder, `${name}-${width}-head.png`), Buffer.from(head.data, "base64"));
      }
    }
  },
  async "nothing was asked of the network and no error was logged"() {
    const wrong = events.filter(({ method, params }) => method === "Runtime.exceptionThrown" || (method === "Log.entryAdded" && params.entry.level === "error"));
    assert.deepEqual(wrong.map(({ params }) => params.exceptionDetails?.exception?.description ?? params.entry?.text), []);
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.error(`FAIL ${name}\n${error.stack}`);
  }
}
clearTimeout(limit);
chromium.close();
process.exitCode = failed ? 1 : 0;
