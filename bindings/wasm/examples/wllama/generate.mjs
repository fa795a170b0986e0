// llama.cpp in a browser (wllama, from npm) computes logits, Gumball draws the tokens: the loop of `gumball generate`.
//
// wllama hands out the softmax of the logits. Their logarithms are the logits but for a constant, which no rule sees, and a rounding.

/** What `gumball generate` draws with if no parameter shapes the distribution. */
export const PARAMS = { temperature: 0.7, top_p: 0.9 };

/** Returns the text that SmolLM2's chat template makes of a question. */
export function chat(question) {
  const system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
  return `<|im_start|>system\n${system}<|im_end|>\n<|im_start|>user\n${question}<|im_end|>\n<|im_start|>assistant\n`;
}

/**
 * Generates an answer. `wllama` has loaded a model, `Sampler` is gumball-wasm's, `onText` is called with all of the text so far. Options:
 * `params`, PARAMS with a seed; `max_tokens`, 512. Returns the text, the ids of prompt and output, and how long the draws took, in
 * microseconds each.
 */
export async function generate(wllama, Sampler, question, { params = { ...PARAMS, seed: 7 }, max_tokens = 512, onText = () => {} } = {}) {
  const prompt = await wllama.tokenize(chat(question), true);
  await wllama.kvClear();
  await wllama.decode(prompt, {});
  let sampler, logits, text = "", spent = 0;
  const output = [];
  while (output.length < max_tokens) {
    const tokens = await wllama.getLogits(-1);
    sampler ??= new Sampler(params, tokens.length, { prompt });
    logits ??= new Float32Array(tokens.length);
    for (const { token, p } of tokens) logits[token] = Math.log(p);
    const start = performance.now();
    const id = sampler.sample(logits);
    spent += performance.now() - start;
    if (id === undefined || wllama.isTokenEOG(id)) break;
    output.push(id);
    // Whole texts are decoded anew: a character may have several tokens.
    text = await wllama.detokenize(output, true);
    onText(text);
    await wllama.decode([id], {});
  }
  sampler?.free();
  return { text, prompt, output, draw_us: (spent * 1000) / Math.max(output.length, 1) };
}
