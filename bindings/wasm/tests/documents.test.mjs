// Each fragment of JavaScript in the documents runs as it stands, alone, in Node.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../../", import.meta.url));

for (const page of ["docs/wasm.md", "bindings/wasm/README.md"]) {
  const fragments = [...readFileSync(join(root, page), "utf8").matchAll(/^```js\n(.*?)^```$/gms)];
  test(`${page} has fragments`, () => {
    if (fragments.length === 0) throw new Error("none is found");
  });
  fragments.forEach(([, text], number) => {
    test(`${page}, fragment ${number + 1}`, () => {
      const folder = mkdtempSync(join(tmpdir(), "gumball-"));
      mkdirSync(join(folder, "node_modules"));
      symlinkSync(join(root, "bindings/wasm/pkg"), join(folder, "node_modules/gumball-wasm"));
      writeFileSync(join(folder, "fragment.mjs"), text);
      execFileSync(process.execPath, ["fragment.mjs"], { cwd: folder });
      rmSync(folder, { recursive: true });
    });
  });
}
