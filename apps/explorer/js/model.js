// What does the model say? Where `gumball explore --model` serves the page, its server is asked for tokens and rows of
// logits; a page that is a file has no model, and asks nobody.

/** What the server wrote into the page; null in a page that is a file.
 * @type {{name: string, digest: string, vocab: number, most_tokens: number, ends: number[], chat: boolean} | null} */
export const served = JSON.parse(document.getElementById("served").textContent);

async function ask(what, question) {
  const sent = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) };
  const response = await fetch(what, sent).catch(() => {
    throw new Error("The model's server does not answer. If it has ended, start it again and open the link in the new page.");
  });
  if (!response.ok) throw new Error(`The model's server refuses this: ${(await response.json()).error}`);
  return response;
}

/** The ids of a text; of a conversation that it opens, if `chat`. @returns {Promise<number[]>} */
export const tokensOf = async (text, chat) => (await ask("tokens", { text, chat })).json();
/** The text of each token. @returns {Promise<string[]>} */
export const allTexts = async () => (await ask("texts", {})).json();
/** The logits after the ids of a prompt and of what follows it. */
export async function logitsAfter(prompt, output) {
  const view = new DataView(await (await ask("row", { prompt, output })).arrayBuffer());
  return Float32Array.from({ length: view.byteLength / 4 }, (_, id) => view.getFloat32(4 * id, true));
}
