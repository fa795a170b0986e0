// Does the code of "Copy as" run, and does Gumball's own draw the page's token? `node apps/explorer/tests/copied.mjs [LANGUAGE..]` runs it, in
// all of these if none is named, with the row beside it that the page saves. An engine that is not there is skipped by name, and counted in the last line:
//
//   rust          cargo; the engine is built
//   python        GUMBALL_PYTHON_ENVIRONMENT, or what the tests of bindings/python make: an environment with the package and NumPy
//   vllm          GUMBALL_VLLM_ENVIRONMENT (ci/plugin make vllm): its SamplingParams, with what it checks at admission
//   transformers  GUMBALL_TRANSFORMERS_ENVIRONMENT (ci/plugin make transformers): `generate` of a tiny model with random weights
//   sglang        GUMBALL_SGLANG, a folder that has its package: its SamplingParams; needs msgspec and torch, which vLLM's environment has
//   llama         GUMBALL_LLAMA_COMMAND, a program of llama.cpp: its parser reads the flags up to --version
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { gunzipSync } from "node:zlib";
import * as gumball from "../../../bindings/wasm/pkg/node.js";
import { toNpy } from "../js/bring.js";
import { code } from "../js/copyas.js";
import { refusals } from "../js/engines.js";
import { SAVED } from "../js/owncode.js";
import { NEUTRAL, adopt, toParams } from "../js/parameters.js";
import { brought, recorded } from "../js/rows.js";

const root = resolve(import.meta.dirname, "../../..");
const rows = recorded(gunzipSync(readFileSync(join(import.meta.dirname, "../rows/smollm2.rows.gz"))));
const own = brought(Float32Array.of(1, -Infinity, 3.25, 1e30, 2), "a row without texts");

const table = gumball.parameters();
adopt(table);
/** All filters at usual values. */
const FILTERS_ON = Object.fromEntries(table.filter(({ usual }) => usual).map(({ name, holds, usual }) => [name, holds === "boolean" || usual]));

/** Settings of the page, each beside the row that it is for. */
const CASES = [
  [0, {}],
  [0, { temperature: 0.8, top_p: 0.9 }],
  [4, { temperature: 2, order: "joint", top_k: 50, top_p: 0.8, top_n_sigma: 2, seed: 1, draw: 5 }],
  [8, { repetition_penalty: 1.5, repetition_scope: "output", frequency_penalty: 0.3, presence_penalty: -0.2, penalty_scope: "both", no_repeat_ngram: 3 }],
  [9, { dry_multiplier: 0.8, dry_base: 2, dry_allowed_length: 1, dry_breakers: "28 198" }],
  [9, { dry_multiplier: 1, repetition_penalty: 1.1 }],
  [3, { mirostat_tau: 3, mirostat_eta: 0.2 }],
  [3, { mirostat_tau: 3, mirostat_mu: 4.5 }],
  [3, { adaptive_target: 0.3, min_p: 0.02 }],
  [5, { adaptive_target: 0.2, adaptive_decay: 0.5, min_p: 0.02, mu: 0.6 }],
  [2, { dynamic_min: 0.5, dynamic_max: 2, dynamic_exponent: 1.5 }],
  [2, { temperature: 0, dynamic_min: 0.5, dynamic_max: 2, top_k: 5 }],
  [1, { temperature: 1.2, logit_bias: "7:2.5 28:-Infinity 253:3", banned_ids: "42 43", bad_words: "99;12 5;28 29 30", seed: "18446744073709551615" }],
  [1, { allowed_ids: "7 28 253", stop_ids: "2", min_tokens: 40, seed: 4294967295 }],
  [6, { temperature: 1.5, ...FILTERS_ON, temperature_last: true }],
  [7, { temperature: 1.3, xtc_probability: 0.5, xtc_threshold: 0.05, min_p: 0.01 }],
  [5, { order: "min_p,top_k,top_p", min_p: 0.02, top_k: 100, top_p: 0.95 }],
  [5, { order: "joint", min_p: 0.02, top_p: 0, temperature: 0.005 }],
  [5, { temperature: 2.5, frequency_penalty: 3, repetition_penalty: 4, presence_penalty: -2.5 }],
  [own, { temperature: 1e30, top_k: 4, seed: 3, bad_words: "0;1 2" }],
];

/** Each case with its folder, where the row lies, and the page's token. */
function prepared(home) {
  return CASES.map(([where, set], index) => {
    const row = typeof where === "number" ? rows[where] : where;
    const settings = { ...NEUTRAL, ...set };
    let sampler = new gumball.Sampler(toParams(settings), row.logits.length, { prompt: row.ids, draw: settings.draw });
    for (const id of row.output) sampler.push(id);
    if (settings.mu !== undefined) sampler = gumball.Sampler.resume(toParams(settings), row.logits.length, { ...sampler.state, mu: settings.mu });
    const token = sampler.sample(row.logits, { dtype: row.dtype });
    sampler.free();
    const folder = join(home, String(index));
    mkdirSync(folder);
    writeFileSync(join(folder, SAVED), toNpy(row));
    return { folder, row, settings, token, text: (target) => code(target, settings, row, { id: token }).text };
  });
}

/** Runs a program of Python over cases as JSON; what it prints is the answer, a list. */
function python(binary, program, cases, environment = {}) {
  const options = { input: JSON.stringify(cases), maxBuffer: 1 << 26, env: { ...process.env, PYTHONDONTWRITEBYTECODE: "1", ...environment }, stdio: ["pipe", "pipe", "inherit"] };
  return JSON.parse(execFileSync(binary, ["-c", program], options).toString().trim().split("\n").at(-1));
}

/** Each case is run by itself: what it raises is its answer. */
const EACH = (before, within) => `
import contextlib, io, json, os, sys
cases = json.load(sys.stdin)
${before}
answers = []
for case in cases:
    os.chdir(case["folder"])
    space, printed = {}, io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
${within.replace(/^/gm, "            ")}
        answers.append(printed.getvalue().strip())
    except Exception as error:
        answers.append(f"raised {type(error).__name__}: {error}")
print(json.dumps(answers))
`;

const environment = (name, otherwise) => {
  const binary = join(process.env[name] ?? otherwise ?? "", "bin/python");
  return existsSync(binary) ? binary : undefined;
};
const asked = (target, cases) => cases.map(({ folder, text, row }) => ({ folder, text: text(target), prompt: row.ids, vocab: row.logits.length }));

/** An engine of others must take what it gets, but for what the page itself says that it refuses. */
function judged(target, cases, answers) {
  for (const [index, answer] of answers.entries()) {
    const refused = refusals(target, cases[index].settings);
    const told = `${target}, case ${index}: ${cases[index].text(target)}\n${answer}`;
    assert.equal(/^raised /.test(answer), refused.length > 0, told);
    if (refused.length) assert.ok(Object.keys(cases[index].settings).some((name) => refused.join().includes(name) && answer.includes(name)), told);
  }
}

const VOCABULARY = `
class Config:
    def __init__(self, vocab): self.vocab = vocab
    def get_vocab_size(self): return self.vocab`;

const TARGETS = {
  rust(cases) {
    if (spawnSync("cargo", ["--version"]).error) return "no cargo";
    const messages = execFileSync("cargo", ["build", "--package", "gumball-engine", "--message-format", "json"], { cwd: root, maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "inherit"] });
    const built = messages.toString().split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
    const library = built.find((one) => one.target?.name === "gumball_engine" && one.filenames?.some((file) => file.endsWith(".rlib"))).filenames.find((file) => file.endsWith(".rlib"));
    const modules = cases.map(({ text }, index) => `mod case_${index} {\n${text("rust").replace("fn main", "pub fn main")}\n}`);
    const calls = cases.map(({ folder }, index) => `    std::env::set_current_dir(${JSON.stringify(folder)}).unwrap();\n    case_${index}::main().unwrap();`);
    const home = join(cases[0].folder, "..");
    writeFileSync(join(home, "copied.rs"), `${modules.join("\n")}\nfn main() {\n${calls.join("\n")}\n}\n`);
    execFileSync("rustc", ["--edition", "2024", "copied.rs", "--extern", `gumball_engine=${library}`, "-L", `dependency=${join(library, "../deps")}`], { cwd: home, stdio: "inherit" });
    const drawn = execFileSync(join(home, "copied")).toString().trim().split("\n");
    assert.deepEqual(drawn, cases.map(({ token }) => `Some(${token})`));
  },
  python(cases) {
    const binary = environment("GUMBALL_PYTHON_ENVIRONMENT", join(root, "target/tmp/python/environment"));
    if (!binary) return "no environment with the package";
    const drawn = python(binary, EACH("", 'exec(case["text"], space)'), asked("python", cases));
    assert.deepEqual(drawn, cases.map(({ token }) => String(token)));
  },
  vllm(cases) {
    const binary = environment("GUMBALL_VLLM_ENVIRONMENT");
    if (!binary) return "GUMBALL_VLLM_ENVIRONMENT names no environment";
    const admitted = 'exec(case["text"], space)\nconfig = Config(case["vocab"])\nspace["params"]._validate_logit_bias(config)\nspace["params"]._validate_stop_token_ids(config)\nspace["params"]._validate_allowed_token_ids(config)';
    judged("vllm", cases, python(binary, EACH(`import vllm\n${VOCABULARY}`, admitted), asked("vllm", cases), { VLLM_LOGGING_LEVEL: "ERROR" }));
  },
  sglang(cases) {
    const binary = environment("GUMBALL_VLLM_ENVIRONMENT");
    const folder = process.env.GUMBALL_SGLANG;
    if (!binary || !existsSync(join(folder ?? "", "sglang/srt/sampling"))) return "GUMBALL_SGLANG names no folder with its package, or vLLM's environment is missing";
    // The package's own beginning loads the whole engine; the parameters need their folder alone.
    const alone = `import types\nfor name in ["sglang", "sglang.srt", "sglang.srt.sampling"]:\n    module = sys.modules[name] = types.ModuleType(name)\n    module.__path__ = [${JSON.stringify(folder)} + "/" + name.replace(".", "/")]\nfrom sglang.srt.sampling.sampling_params import SamplingParams`;
    judged("sglang", cases, python(binary, EACH(alone, 'exec(case["text"], space)\nSamplingParams(**space["sampling_params"]).verify(case["vocab"])'), asked("sglang", cases)));
  },
  transformers(cases) {
    const binary = environment("GUMBALL_TRANSFORMERS_ENVIRONMENT") ?? environment("GUMBALL_VLLM_ENVIRONMENT");
    if (!binary) return "GUMBALL_TRANSFORMERS_ENVIRONMENT names no environment";
    const tiny = "import warnings\nimport torch, transformers\nwarnings.simplefilter('ignore')\ntransformers.logging.set_verbosity_error()\ndef tiny(vocab):\n    config = transformers.LlamaConfig(vocab_size=vocab, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, bos_token_id=0, eos_token_id=None, pad_token_id=0)\n    return transformers.LlamaForCausalLM(config).eval()\nmodels = {}";
    const generated = 'ids = torch.tensor([case["prompt"] or [0]])\nmodel = models.setdefault(case["vocab"], None) or models.update({case["vocab"]: tiny(case["vocab"])}) or models[case["vocab"]]\nspace.update(model=model, inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})\nexec(case["text"], space)';
    judged("transformers", cases, python(binary, EACH(tiny, generated), asked("transformers", cases)));
  },
  llama(cases) {
    const command = process.env.GUMBALL_LLAMA_COMMAND;
    if (!command) return "GUMBALL_LLAMA_COMMAND names no program of llama.cpp";
    const answers = cases.map(({ text }) => {
      const { status, stderr, stdout } = spawnSync("bash", ["-c", `${text("llama").replace(/^llama-cli/, '"$0"')} --version`, command]);
      return status === 0 ? "" : `raised ${status}: ${stderr}${stdout}`;
    });
    judged("llama", cases, answers);
  },
};

const home = mkdtempSync(join(tmpdir(), "gumball-copied-"));
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(TARGETS);
const [ran, skipped] = [[], []];
try {
  const cases = prepared(home);
  for (const target of names) {
    try {
      const lacking = TARGETS[target](cases);
      if (lacking) skipped.push(target);
      else ran.push(target);
      console.log(lacking ? `skipped ${target}: ${lacking}` : `ok      ${target}: ${cases.length} settings`);
    } catch (error) {
      process.exitCode = 1;
      console.error(`FAIL    ${target}\n${error.message}`);
    }
  }
} finally {
  rmSync(home, { recursive: true, force: true });
}
console.log(`copied code ran in ${ran.length} of ${names.length} languages; skipped: ${skipped.length ? skipped.join(", ") : "none"}`);
