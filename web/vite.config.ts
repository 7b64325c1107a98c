import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false })],
  build: {
    outDir: "../src/turnlog/web",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    rollupOptions: {
      output: { entryFileNames: "assets/timeline.js", assetFileNames: "assets/timeline[extname]" },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8484" } },
});
