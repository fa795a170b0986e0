// Holds texts of a page to those of `gumball generate`: `node ci/lib/wasm-model.mjs COMMAND MODEL`, where COMMAND is the gumball command and MODEL the
// file of its model, below the repository's root. llama.cpp computes the model in headless Chromium (wllama), and the package draws.
//
// The two programs compute the same model with other roundings, so logits differ a little, and some draws with them: behind the tokens of
// `gumball generate` at least nine of ten draws must be its own (331 of 344 were, when this was written). A second run must write the same text.
import { execFileSync } from "node:child_process";
import { relative, resolve } from "node:path";

const root = resolve(import.meta.dirname, "../..");
const [command, file] = process.argv.slice(2);
const model = relative(root, resolve(file));
const QUESTION = "Why is the sky blue?";
const SEEDS = [7, 8, 9];
const TOKENS = 40;

const jobs = [];
const expected = SEEDS.map((seed) => {
  const flags = ["generate", QUESTION, "--seed", String(seed), "--max-tokens", String(TOKENS), "--json"];
  const { tokens } = JSON.parse(execFileSync(command, flags, { stdio: ["ignore", "pipe", "ignore"] }));
  const follow = tokens.map(({ id }) => id);
  const params = { temperature: 0.7, top_p: 0.9, seed };
  jobs.push({ model, question: QUESTION, params, follow, max_tokens: follow.length });
  return follow;
});
const free = { ...jobs[0], follow: [] };
const all = [...jobs, free, free].map((job) => `generate:${JSON.stringify(job)}`);
let lines;
try {
  lines = execFileSync("node", [`${root}/ci/lib/wasm-browser.mjs`, ...all], { stdio: ["ignore", "pipe", "inherit"] });
} catch (error) {
  process.exit(error.status ?? 1);
}
const made = lines.toString().trim().split("\n").slice(1).map((line) => JSON.parse(line));

const same = expected.flatMap((tokens, job) => tokens.map((id, place) => made[job].drawn[place] === id));
const [equal, draws] = [same.filter(Boolean).length, same.length];
console.log(`behind the tokens of gumball generate ${equal} of ${draws} draws are its own`);
console.log(`the page writes: ${made.at(-1).text}`);
if (equal < 0.9 * draws) throw new Error("too few draws are those of gumball generate");
if (made.at(-1).text !== made.at(-2).text) throw new Error(`another run wrote: ${made.at(-2).text}`);
