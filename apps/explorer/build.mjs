// How does the page become one file? Modules become data: addresses in an import map, the wasm module and the rows gzip in base64.
// `node apps/explorer/build.mjs PACKAGE OUT`: PACKAGE is what ci/wasm package makes. Nothing is fetched when the page is opened, so
// it works from a file.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMIT_BYTES = 3_000_000;
const [pkg, out] = process.argv.slice(2);
const home = import.meta.dirname;
const read = (...path) => readFileSync(join(...path));

const WORKER = "worker.js";
const modules = new Map(readdirSync(join(home, "js")).filter((name) => name.endsWith(".js")).map((name) => [name, join(home, "js", name)]));
const own = [...modules.keys()].filter((name) => name !== WORKER);
for (const name of ["index.js", "gumball.js", "host.js"]) modules.set(name, join(pkg, name));

/** A module's text, with each module that it asks for under the address that `address` has for its name. */
const linked = (name, address) =>
  read(modules.get(name)).toString().replace(/(from\s+)(["'])\.\/([\w-]+\.js)\2/g, (whole, from, quote, other) => {
    if (!modules.has(other)) throw new Error(`${name} asks for ${other}, which is not there`);
    return `${from}"${address(other)}"`;
  });
const data = (text) => `data:text/javascript;base64,${Buffer.from(text).toString("base64")}`;
// A module of a data: address has no neighbours, so each is asked for by a name of the map. A worker has no map: there each holds those it asks for.
const imports = Object.fromEntries(own.map((name) => [`explorer/${name}`, data(linked(name, (other) => `explorer/${other}`))]));
// Not in base64, which gzip packs badly.
const whole = (name) => `data:text/javascript,${encodeURIComponent(linked(name, whole))}`;
const worker = linked(WORKER, whole);

const packed = (id, bytes) => `<script type="application/octet-stream" id="${id}">${bytes.toString("base64")}</script>`;
const starter = `<script type="module">
import { main } from "explorer/main.js";
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
Promise.all(["worker", "module", "rows"].map(unpacked))
  .then((parts) => main(...parts))
  .catch((error) => { document.getElementById("loading").textContent = "The page cannot start: " + error; });
</script>`;
const parts = {
  "/*@CSS@*/": read(home, "page.css").toString(),
  "<!--@IMPORTS@-->": `<script type="importmap">${JSON.stringify({ imports })}</script>`,
  "<!--@DATA@-->": [packed("worker", gzipSync(worker, { level: 9 })), packed("module", gzipSync(read(pkg, "gumball_bg.wasm"), { level: 9 })), packed("rows", read(home, "rows", "smollm2.rows.gz")), starter].join("\n"),
};
let page = read(home, "index.html").toString();
for (const [place, part] of Object.entries(parts)) page = page.replace(place, () => part);
writeFileSync(out, page);
const bytes = Buffer.byteLength(page);
console.log(`${out}: ${bytes} bytes`);
if (bytes > LIMIT_BYTES) {
  console.error(`the page has ${bytes} bytes; allowed are ${LIMIT_BYTES}`);
  process.exit(1);
}
