// What if: one change at a step, what happens to calls that the recording does not answer, and what will happen.

import { useEffect, useRef, useState } from "preact/hooks";

import { ask, type Entry, place, post, type Step } from "./api";
import { count, money, nameOf, tokens } from "./format";
import { Icon } from "./icons";

type Change = "model" | "instructions" | "result" | "text" | "arguments";

interface Preview {
  shared: number;
  call: number;
  model: string;
  inputTokens: number;
  cost?: number | null;
  recorded: { toolName: string }[];
  unrecorded?: string;
  missing: string[];
}

const MODES: [string, string, string, string][] = [
  ["recorded", "Recorded", "Same tool and arguments: the record answers. Others end the run.", "none"],
  ["ask", "Recorded, else ask", "Others wait in your inbox.", "none without you"],
  ["live", "Live", "Others run, with their effects.", "calls that were not recorded"],
];

/** Which entry each kind of change is about, seen from a step: the nearest one that it can be made at. */
function spots(steps: Step[], step: Step): [Change, string, Step | undefined][] {
  const at = steps.indexOf(step);
  const back = (fits: (each: Step) => boolean) => steps.slice(0, at + 1).reverse().find(fits);
  const call = step.kind === "model" ? step : (steps.slice(at).find((each) => each.kind === "model") ?? back((each) => each.kind === "model"));
  const tool = step.kind === "tool" ? step : back((each) => each.kind === "tool");
  const next = step.kind === "tool" ? step : steps.slice(at).find((each) => each.kind === "tool" && each.run === step.run);
  const asked = back((each) => each.kind === "input" && !["steering", "correction", "host"].includes(each.detail ?? ""));
  return [
    ["model", "Model", call],
    ["instructions", "Instructions", call],
    ["result", "Tool result", tool],
    ["text", "User’s words", asked],
    ["arguments", "Arguments", next ?? tool],
  ];
}

export function WhatIf(props: { id: string; step: Step; steps: Step[]; prompt?: string; model?: string; onDone: (branch: string) => void; onClose: () => void }) {
  const { id, step } = props;
  const choices = spots(props.steps, step).filter(([, , at]) => at !== undefined) as [Change, string, Step][];
  const [change, setChange] = useState<Change>(step.kind === "input" ? "text" : step.kind === "tool" ? "result" : "model");
  const [values, setValues] = useState<Partial<Record<Change, string>>>({ instructions: props.prompt });
  const [tools, setTools] = useState("recorded");
  const [problem, setProblem] = useState("");
  const [told, setTold] = useState<Preview | undefined>();
  const [busy, setBusy] = useState(false);
  const [models, setModels] = useState<string[]>([]);
  const dialog = useRef<HTMLDialogElement>(null);
  const chosen = choices.find(([name]) => name === change);
  const at = chosen?.[2] ?? step;
  // An entry that the change can be made at: the results of a tool call have all that is asked for.
  const seq = change === "result" || change === "arguments" ? (at.entries.at(-1) ?? at.seq) : at.seq;
  const value = values[change] ?? "";
  const before = change === "instructions" ? props.prompt : undefined;

  useEffect(() => {
    const focused = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    ask<{ model?: string }>("/about").then((about) => setModels([about.model].filter((name): name is string => !!name && name !== props.model)), () => undefined);
    return () => focused?.focus();
  }, []);

  useEffect(() => {
    // What it is now stands in the field, to be changed.
    if (values[change] !== undefined || change === "model" || change === "instructions") return;
    const stop = new AbortController();
    (async () => {
      if (change === "text") return (await ask<Entry>(`${place(id)}/entries/${at.seq}`, { signal: stop.signal })).payload.message.parts.find((part: any) => part.kind === "text")?.payload.text;
      for (const number of at.entries.slice().reverse()) {
        const { payload } = await ask<Entry>(`${place(id)}/entries/${number}`, { signal: stop.signal });
        const part = payload.message?.parts.find((each: any) => each.payload.toolCallId === at.toolCallId);
        if (change === "result" && part) return typeof part.payload.content === "string" ? part.payload.content : JSON.stringify(part.payload.content, null, 2);
        if (change === "arguments" && payload.arguments) return JSON.stringify(payload.arguments, null, 2);
      }
      return undefined;
    })().then(
      (found) => setValues((now) => ({ [change]: found ?? "", ...now })),
      () => undefined,
    );
    return () => stop.abort();
  }, [change, at.seq]);

  const body = () => ({ at: seq, tools, [change]: change === "arguments" ? JSON.parse(value) : value });
  useEffect(() => {
    setProblem("");
    if (!value.trim()) return setTold(undefined);
    const timer = setTimeout(async () => {
      try {
        setTold(await post<Preview>(`${place(id)}/rerun/preview`, body()));
      } catch (error) {
        setTold(undefined);
        setProblem(error instanceof SyntaxError ? "The arguments are not valid JSON." : (error as Error).message);
      }
    }, 250);
    return () => clearTimeout(timer);
  }, [change, value, tools, seq]);

  const quoted = /^[\w.:/-]+$/.test(value) ? value : value ? `'${value.replaceAll("'", "'\\''")}'` : "…";
  const short = quoted.length > 60 ? `${quoted.slice(0, 56)}…'` : quoted;
  const run = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      props.onDone((await post<{ sessionId: string }>(`${place(id)}/rerun`, body())).sessionId);
    } catch (error) {
      setProblem(error instanceof SyntaxError ? "The arguments are not valid JSON." : (error as Error).message);
    }
    setBusy(false);
  };
  const answered = new Map<string, number>();
  for (const each of told?.recorded ?? []) answered.set(each.toolName, (answered.get(each.toolName) ?? 0) + 1);
  return (
    <dialog ref={dialog} class="dlg wi" aria-label="What if" onClose={props.onClose}>
      <form
        onSubmit={run}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.metaKey || event.ctrlKey) && value.trim() && !busy) run(event);
        }}
      >
        <header>
          <Icon name="fork" /> <h2>What if, from #{at.seq}</h2> <span class="dim">{nameOf(at)}</span>
          <span class="grow" />
          <button type="button" class="btn sq bare" aria-label="Close" onClick={props.onClose}>
            <Icon name="close" />
          </button>
        </header>
        <div class="wicols">
          <div class="opts" role="radiogroup" aria-label="What changes">
            {choices.map(([name, words, where]) => (
              <button type="button" key={name} role="radio" aria-checked={change === name} onClick={() => setChange(name)}>
                {words} {name !== "model" && name !== "instructions" && <span>#{where.seq}</span>}
                {(values[name] ?? "") !== "" && name === change && <i />}
              </button>
            ))}
          </div>
          <label class="wv">
            {change === "model" ? "Another model, as anthropic:claude-sonnet-4-5" : change === "arguments" ? "The arguments of the call, as JSON" : change === "result" ? `What ${at.tool} returned` : change === "text" ? "What was asked" : "The instructions"}
            {change === "model" ? (
              <input autofocus list="models" value={value} onInput={(event) => setValues({ ...values, model: event.currentTarget.value })} />
            ) : (
              <textarea autofocus rows={6} value={value} onInput={(event) => setValues({ ...values, [change]: event.currentTarget.value })} />
            )}
            <datalist id="models">
              {models.map((name) => (
                <option key={name} value={name} />
              ))}
            </datalist>
            {change === "model" && <span class="dim">{props.model ? `Recorded with ${props.model}. ` : ""}Another model reads the same messages; its cache starts empty.</span>}
            {before !== undefined && before === value && <span class="dim">These are the instructions that it had.</span>}
          </label>
        </div>
        <h3>Tool calls on the way</h3>
        <div class="modes" role="radiogroup" aria-label="Tools">
          {MODES.map(([mode, name, what]) => (
            <button type="button" key={mode} role="radio" aria-checked={tools === mode} onClick={() => setTools(mode)}>
              <b>{name}</b>
              <span>{what}</span>
            </button>
          ))}
        </div>
        <h3>What will happen</h3>
        <dl class="will" aria-live="polite">
          <div>
            <dt>Shared</dt>
            <dd>{told ? count(told.shared, "entry").replace("entrys", "entries") : "–"}</dd>
          </div>
          <div>
            <dt>Runs again</dt>
            <dd>{told ? `from model call ${told.call}` : "–"}</dd>
          </div>
          <div>
            <dt>First call</dt>
            <dd>{told ? `${tokens(told.inputTokens)} tokens${told.cost != null ? `, about ${money(told.cost)}` : ""}` : "–"}</dd>
          </div>
          <div>
            <dt>The record answers</dt>
            <dd>{told ? [...answered].map(([name, times]) => (times > 1 ? `${name} × ${times}` : name)).join(", ") || "no call" : "–"}</dd>
          </div>
          <div>
            <dt>Effects</dt>
            <dd>{MODES.find(([mode]) => mode === tools)![3]}</dd>
          </div>
        </dl>
        {told?.unrecorded && (
          <p class="warn">
            {told.unrecorded} was not recorded with these arguments: {tools === "recorded" ? "the run ends there." : tools === "ask" ? "it waits for you." : "it runs, with its effects."}
          </p>
        )}
        {told && told.missing.length > 0 && <p class="warn">This agent has no tool {told.missing.join(", ")}: the model is not offered it.</p>}
        {problem && (
          <p class="bad" role="alert">
            {problem}
          </p>
        )}
        <footer>
          <code class="cmd">
            turnlog rerun {id} --at {seq} --{change} {short} --tools {tools}
          </code>
          <button type="button" class="btn bare" onClick={props.onClose}>
            Cancel
          </button>
          <button class="btn pri" disabled={busy || !value.trim()}>
            Run the branch <kbd>⌘⏎</kbd>
          </button>
        </footer>
      </form>
    </dialog>
  );
}
