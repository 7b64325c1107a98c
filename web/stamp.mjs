// What the built page was made of: tests compare it with the sources, without node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const files = ["index.html", "package.json", "vite.config.ts", ...readdirSync("src").sort().map((name) => `src/${name}`)];
const hash = createHash("sha256");
for (const file of files) hash.update(`${file}\n`).update(readFileSync(file));
writeFileSync("../src/turnlog/web/sources.sha256", `${hash.digest("hex")}\n`);
