// Does the page go on with a model? The command serves it with the default model; what the page writes must be what `gumball generate` writes
// by the same settings.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

const root = join(import.meta.dirname, "../../..");
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
const PROMPT = "Name three rivers.";

/** The command, as far as it was built. */
export const command = () => ["release", "debug"].map((profile) => join(target, profile, "gumball")).find(existsSync);

/** Starts a server; returns the page's address and how to end it. */
export async function served(program) {
  const child = spawn(program, ["explore", "--model"], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout });
  const address = await new Promise((resolve, reject) => {
    lines.once("line", resolve);
    child.once("exit", (code) => reject(new Error(`gumball explore ended with ${code}`)));
  });
  return { address, close: () => child.kill("SIGINT") };
}

const generated = (program, ...flags) => JSON.parse(execFileSync(program, ["generate", PROMPT, "--json", ...flags])).tokens.map(({ id }) => id);

/** The tests; `page` are the ways of browser.mjs to speak with it, and `program` is the command. */
export function modelTests(page, program) {
  const { accessible, click, evaluate, hash, picture, press, run, set, settled, size, text, visit, winner } = page;
  const ids = () => evaluate("[...document.querySelectorAll('#text .token')].map((token) => Number(token.dataset.id))");
  const begin = async (prompt = PROMPT) => {
    await run(`document.getElementById("prompt").value = ${JSON.stringify(prompt)}; document.body.dataset.ready = "no"; document.getElementById("begin").click();`);
    await settled();
  };
  const drawn = { temperature: 0.8, top_p: 0.9, seed: 7 };
  const flags = (settings) => Object.entries(settings).flatMap(([name, value]) => [`--${name.replaceAll("_", "-").replace("mirostat-tau", "mirostat")}`, String(value)]);
  const query = (settings) => `#${new URLSearchParams({ view: "tune", ...settings })}`;
  return {
    async "a prompt goes on with the tokens of `gumball generate`"() {
      for (const settings of [drawn, { temperature: 1.2, top_k: 50, min_p: 0.02, repetition_penalty: 1.2, seed: 12345678901234567890n.toString() }, { mirostat_tau: 3, seed: 3 }, { temperature: 1, min_tokens: 12, top_p: 0.5, seed: 5 }]) {
        await visit(query(settings));
        await begin();
        assert.deepEqual(await ids(), generated(program, "--max-tokens", "8", ...flags(settings)), JSON.stringify(settings));
      }
      await visit(query(drawn));
      await begin();
      await click("[data-go='8']");
      await click("[data-go='1']");
      assert.deepEqual(await ids(), generated(program, "--max-tokens", "17", ...flags(drawn)));
    },
    async "a text ends by the token that ends it, taken or drawn"() {
      await visit(query(drawn));
      await begin();
      await click("#text [data-place='3']");
      await run("document.getElementById('other').value = '#2'; document.body.dataset.ready = 'no'; document.querySelector('#other-form button').click();");
      await settled();
      assert.equal((await ids()).length, 4);
      assert.match(await text("model-status"), /The model ends its text, by <\|im_end\|>/);
      assert.equal(await evaluate("document.querySelector('[data-go]').disabled"), true);
    },
    async "a click shows why a token was drawn, and settings write the text anew"() {
      await visit(query(drawn));
      await begin();
      const all = await ids();
      for (const place of [0, 3, 7]) {
        await click(`#text [data-place='${place}']`);
        assert.equal(await winner(), all[place]);
        assert.equal(await evaluate("document.querySelector('#text [aria-selected=true]').dataset.place"), String(place));
        assert.match(await text("why-taken"), /was drawn/);
      }
      await set("p-seed", "8");
      assert.deepEqual(await ids(), generated(program, "--max-tokens", "8", ...flags({ ...drawn, seed: 8 })));
      assert.equal(await winner(), (await ids())[7]);
    },
    async "another token makes a branch, and both can be returned to"() {
      await visit(query(drawn));
      await begin();
      const all = await ids();
      await click("#text [data-place='2']");
      const other = Number(await evaluate("document.querySelector('#candidates [data-take]').dataset.take"));
      await click("#candidates [data-take]");
      const taken = await ids();
      assert.deepEqual(taken.slice(0, 3), [...all.slice(0, 2), other]);
      assert.notEqual(other, all[2]);
      assert.ok(taken.length > 3);
      assert.match(await text("why-taken"), /You took .* the seed draws/);
      assert.equal(await evaluate("document.querySelectorAll('#branch-list li').length"), 2);
      await click("#branch-list li:nth-child(1) button");
      assert.deepEqual(await ids(), all);
      await click("#branch-list li:nth-child(2) button");
      assert.deepEqual(await ids(), taken);
      await click("#let-draw");
      assert.deepEqual((await ids()).slice(0, 8), all);
      await run("document.getElementById('other').value = '#42'; document.body.dataset.ready = 'no'; document.querySelector('#other-form button').click();");
      await settled();
      assert.equal((await ids())[2], 42);
    },
    async "the link comes back, in another start too, and not with another model"() {
      await visit(query({ ...drawn, repetition_penalty: 1.1 }));
      await begin();
      await click("#text [data-place='4']");
      await click("#candidates [data-take]");
      await click("[data-go='8']");
      await click("#text [data-place='6']");
      const [link, all, said] = [await hash(), await ids(), await text("sentence")];
      assert.match(link, /model=[0-9a-f]{16}.*forced=4-\d+.*check=[0-9a-f]{8}/);
      await visit(link);
      assert.deepEqual([await ids(), await text("sentence"), await hash()], [all, said, link]);
      assert.equal(await text("link-note"), "");
      const other = await served(program);
      try {
        await visit("", other.address);
        await run(`document.body.dataset.ready = "no"; const link = document.getElementById("link"); link.value = ${JSON.stringify(`http://127.0.0.1:1/x/${link}`)}; link.dispatchEvent(new Event("change"));`);
        await settled();
        assert.deepEqual([await ids(), await text("sentence")], [all, said]);
      } finally {
        other.close();
      }
      await visit(link.replace(/check=[0-9a-f]{8}/, "check=00000000"));
      assert.match(await text("link-note"), /not that of the link/);
      await visit(link.replace(/model=[0-9a-f]{16}/, "model=0123456789abcdef"));
      assert.match(await text("link-note"), /0123456789abcdef; this page has SmolLM2.* left out/);
      assert.deepEqual(await ids(), []);
      await visit(link.replace(/prompt=/, "prompt=x"));
      assert.match(await text("link-note"), /which is left out: prompt of/);
    },
    async "arrow keys go from token to token"() {
      await visit(query(drawn));
      await begin();
      await click("#text [data-place='2']");
      await evaluate("document.querySelector('#text [data-place=\"2\"]').focus()");
      await press("ArrowRight");
      await settled();
      assert.equal(await evaluate("document.activeElement.dataset.place"), "3");
      assert.equal(await winner(), (await ids())[3]);
    },
    async "a question that the server refuses is said, and the page goes on"() {
      await visit(query(drawn));
      await run(`document.getElementById("prompt").value = "a".repeat(100000); document.getElementById("begin").click();`);
      for (let n = 0; n < 100 && !(await text("model-status")); n++) await new Promise((done) => setTimeout(done, 50));
      assert.match(await text("model-status"), /more than 65536 bytes|does not answer/);
      await begin();
      assert.equal((await ids()).length, 8);
    },
    async "no width makes the panel scroll sideways, and axe finds no fault; pictures are taken"() {
      for (const width of [375, 1440])
        for (const [view, scheme] of [["learn", "light"], ["debug", "dark"]]) {
          const real = await size(width, scheme);
          await visit(query({ ...drawn, view }));
          await begin();
          await click("#text [data-place='3']");
          await click("#candidates [data-take]");
          assert.ok((await evaluate("document.documentElement.scrollWidth")) <= real, `${view} at ${real}`);
          await accessible();
          await picture(`model-${view}-${width}`);
        }
    },
  };
}
