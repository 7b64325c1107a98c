// What if: one change at a step, and what happens to calls that the recording does not answer.

import { useEffect, useRef, useState } from "preact/hooks";

import { place, post, type Step } from "./api";
import { nameOf } from "./format";

type Change = "model" | "instructions" | "text" | "result" | "arguments";

const WORDS: Record<Change, string> = {
  model: "The model",
  instructions: "The instructions",
  text: "What was asked",
  result: "What the tool returned",
  arguments: "The arguments of the call",
};
const MODES: [string, string, string][] = [
  ["recorded", "Recorded only", "a call that was not recorded ends the run"],
  ["ask", "Ask", "a call that was not recorded waits for your decision"],
  ["live", "Run live", "a call that was not recorded runs, with its effects"],
];

export function WhatIf({ id, step, onDone, onClose }: { id: string; step: Step; onDone: (branch: string) => void; onClose: () => void }) {
  const choices: Change[] = step.kind === "input" ? ["text"] : step.kind === "tool" ? ["result", "arguments"] : ["model", "instructions"];
  const [change, setChange] = useState<Change>(choices[0]);
  const [value, setValue] = useState(change === "text" ? (step.title ?? "") : "");
  const [tools, setTools] = useState("recorded");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    return () => before?.focus();
  }, []);

  const quoted = value.includes("\n") || value.includes(" ") ? `'${value.replaceAll("'", "'\\''")}'` : value || "…";
  const command = `turnlog rerun ${id} --at ${step.seq} --${change} ${quoted} --tools ${tools}`;
  const run = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      const given = change === "arguments" ? JSON.parse(value) : value;
      const made = await post<{ sessionId: string }>(`${place(id)}/rerun`, { at: step.seq, tools, [change]: given });
      onDone(made.sessionId);
    } catch (error) {
      setProblem(error instanceof SyntaxError ? "The arguments are not valid JSON." : (error as Error).message);
    }
    setBusy(false);
  };
  return (
    <dialog ref={dialog} class="dlg wi" aria-label="What if" onClose={onClose}>
      <form onSubmit={run}>
        <h2>
          What if, at #{step.seq} {nameOf(step)}
        </h2>
        <div class="seg" role="radiogroup" aria-label="What changes">
          {choices.map((each) => (
            <button type="button" key={each} role="radio" aria-checked={change === each} onClick={() => setChange(each)}>
              {WORDS[each]}
            </button>
          ))}
        </div>
        <label class="wv">
          {change === "model" ? "Another model, as anthropic:claude-sonnet-4-5" : change === "arguments" ? "Other arguments, as JSON" : "Instead"}
          <textarea autofocus rows={change === "model" ? 1 : 4} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        </label>
        <fieldset>
          <legend>Tools</legend>
          {MODES.map(([mode, name, what]) => (
            <label key={mode} class="wm">
              <input type="radio" name="tools" checked={tools === mode} onChange={() => setTools(mode)} /> <b>{name}</b> <span class="dim">{what}</span>
            </label>
          ))}
        </fieldset>
        <p class="dim">Calls with the same arguments get their recorded results. It runs in a branch; the past stays as it was.</p>
        <p>
          <code class="cmd">{command}</code>
        </p>
        {problem && (
          <p class="bad" role="alert">
            {problem}
          </p>
        )}
        <footer>
          <button type="button" class="btn" onClick={onClose}>
            Cancel
          </button>
          <button class="btn pri" disabled={busy || !value.trim()}>
            Run the branch
          </button>
        </footer>
      </form>
    </dialog>
  );
}
