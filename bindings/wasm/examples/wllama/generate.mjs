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
 * `params`, PARAMS with a seed; `max_tokens`, 512; `follow`, ids that stand in the output whatever is drawn, so that two programs'
 * draws can be compared behind the same tokens. Returns the text, the ids of prompt and output, and those that were drawn.
 */
export async function generate(wllama, Sampler, question, options = {}) {
  const { params = { ...PARAMS, seed: 7 }, max_tokens = 512, follow = [], onText = () => {} } = options;
  const prompt = await wllama.tokenize(chat(question), true);
  await wllama.kvClear();
  await wllama.decode(prompt, {});
  const [output, drawn] = [[], []];
  let sampler, logits;
  let text = "";
  while (output.length < max_tokens) {
    const tokens = await wllama.getLogits(-1);
    sampler ??= new Sampler(params, tokens.length, { prompt });
    logits ??= new Float32Array(tokens.length);
    for (const { token, p } of tokens) logits[token] = Math.log(p);
    let id = sampler.sample(logits);
    drawn.push(id);
    if (output.length < follow.length) {
      id = follow[output.length];
      sampler.shorten(sampler.output.length - output.length);
      sampler.push(id);
    }
    if (id === undefined || wllama.isTokenEOG(id)) break;
    output.push(id);
    // Whole texts are decoded anew: a character may have several tokens.
    text = await wllama.detokenize(output, true);
    onText(text);
    await wllama.decode([id], {});
  }
  sampler?.free();
  return { text, prompt, output, drawn };
}
