// One step in detail: what the model saw, the raw entries, the tool, times and costs, the widgets.

import { useEffect, useState } from "preact/hooks";

import { ask, type Entry, type Message, place, type RunSpan, type Saw, type Step } from "./api";
import { Arguments } from "./approval";
import { inFile } from "./file";
import { clock, count, duration, money, nameOf, resultText, textOf, tokens } from "./format";
import { Icon } from "./icons";

export const TABS = ["saw", "raw", "tool", "time", "widgets"];
const NAMES: Record<string, string> = {
  saw: "What the model saw",
  raw: "Raw",
  tool: "Tool",
  time: "Timing & cost",
  widgets: "Widgets",
};

/** The tools whose results a message has, by the calls before it. */
function toolsIn(message: Message, messages: Message[]): string {
  const ids = new Set(message.parts.map((part) => part.payload.toolCallId));
  const calls = messages.flatMap((each) => each.parts).filter((part) => part.kind === "tool_call" && ids.has(part.payload.toolCallId));
  return [...new Set(calls.map((part) => part.payload.toolName))].join(", ") || "Tool";
}

function SawTab(props: { saw?: Saw; step: Step; asked?: Step; entries: Map<number, Entry>; all: boolean; onAll: (all: boolean) => void }) {
  const { saw, step, asked, entries, all, onAll } = props;
  const [whole, setWhole] = useState(false);
  if (!saw) return <p class="dim">No model call belongs to this step yet.</p>;
  const { view, known } = saw;
  const news = view.origins.slice(known).reduce((sum, each) => sum + each.tokens, 0);
  const before = view.origins.slice(0, known).reduce((sum, each) => sum + each.tokens, 0);
  const used = asked?.input ?? before + news;
  const cached = asked?.input && asked.cached ? Math.round((asked.cached / asked.input) * 100) : undefined;
  const from = all ? 0 : known;
  const answer = step.kind === "model" ? step.entries.map((seq) => entries.get(seq)).find((entry) => entry?.kind === "model_output") : undefined;
  return (
    <>
      <div class="big">
        <b>{used.toLocaleString()}</b> tokens sent to call {view.call}
        <span class="grow" />
        {saw.previous !== undefined && <span class="chip add">+{news.toLocaleString()} new</span>}
        {cached !== undefined && <span class="chip">{cached} % from cache</span>}
      </div>
      <div class="pickrow">
        <div class="seg" role="radiogroup" aria-label="How much is shown">
          <button role="radio" aria-checked={!all} onClick={() => onAll(false)}>
            {saw.previous ? `New since call ${saw.previous}` : "New"}
          </button>
          <button role="radio" aria-checked={all} onClick={() => onAll(true)}>
            Everything, {view.messages.length}
          </button>
        </div>
        <span class="grow" />
        <button class="btn bare" aria-pressed={whole} onClick={() => setWhole(!whole)}>
          Whole texts
        </button>
      </div>
      <ol class={`msgs ${whole ? "whole" : ""}`}>
        {all && view.systemPrompt && (
          <li>
            <span class="g" />
            <div>
              <b>Instructions</b>
              <pre dir="auto">{view.systemPrompt}</pre>
            </div>
          </li>
        )}
        {all && view.toolSpecs.length > 0 && (
          <li>
            <span class="g" />
            <div>
              <b>Tools</b>
              <pre>{view.toolSpecs.map((spec) => `${spec.name}: ${spec.description ?? ""}`).join("\n")}</pre>
            </div>
          </li>
        )}
        {!all && known > 0 && (
          <li class="past">
            <span class="g" />
            <div>{count(known, "message")} the model had seen before, unchanged</div>
            <span class="n">{tokens(before)}</span>
          </li>
        )}
        {view.messages.slice(from).map((message, at) => {
          const origin = view.origins[from + at];
          const fresh = from + at >= known && saw.previous !== undefined;
          const place = origin ? (origin.last > origin.first ? `${origin.first}–${origin.last}` : origin.first) : "";
          return (
            <li key={from + at} class={fresh ? "new" : ""}>
              <span class="g">{place}</span>
              <div>
                <b>{message.role === "user" ? "You" : message.role === "assistant" ? "Model" : toolsIn(message, view.messages)}</b>{" "}
                {origin && !["user", "assistant", "tool results"].includes(origin.kind) && <span class="dim">{origin.kind}</span>}
                {origin?.folded && <span class="chip fork">folded</span>}
                <pre dir="auto">{textOf(message)}</pre>
              </div>
              <span class="n">{origin ? tokens(origin.tokens) : ""}</span>
            </li>
          );
        })}
      </ol>
      {answer && (
        <>
          <h3>What it answered</h3>
          <ol class={`msgs ${whole ? "whole" : ""}`}>
            <li class="answer">
              <span class="g">{answer.seq}</span>
              <div>
                <b>Model</b> <span class="dim">{answer.payload.finishReason}</span>
                <pre dir="auto">{textOf(answer.payload.message)}</pre>
              </div>
              <span class="n">{tokens(step.output)}</span>
            </li>
          </ol>
        </>
      )}
      <p class="dim">
        Context hash <code>{view.contextHash.slice(0, 8)}…{view.contextHash.slice(-4)}</code>{" "}
        {view.matches
          ? "matches the log: this is byte for byte what was sent."
          : view.redacted
            ? "differs from the log: a part of it was hidden since."
            : "differs from the log: it was made with other options."}
      </p>
    </>
  );
}

function Raw({ id, step }: { id: string; step: Step }) {
  const [texts, setTexts] = useState<[number, string][]>([]);
  useEffect(() => {
    const stop = new AbortController();
    setTexts([]);
    Promise.all(
      step.entries.slice(0, 12).map(async (seq) => {
        const entry = await ask<Entry>(`${place(id)}/entries/${seq}`, { signal: stop.signal });
        return [seq, JSON.stringify(entry, null, 2)] as [number, string];
      }),
    ).then(setTexts, () => undefined);
    return () => stop.abort();
  }, [id, step.seq, step.end]);
  return (
    <>
      {texts.map(([seq, text]) => (
        <pre key={seq} class="raw" tabIndex={0}>
          {text}
        </pre>
      ))}
    </>
  );
}

function ToolTab({ step, entries }: { step: Step; entries: Map<number, Entry> }) {
  const found = step.entries.map((seq) => entries.get(seq)).filter((entry) => entry !== undefined);
  const asked = found.find((entry) => entry.kind === "approval_requested");
  const started = found.find((entry) => entry.kind === "tool_started");
  const results = found.find((entry) => entry.kind === "tool_results");
  const part = results?.payload.message.parts.find((each: any) => each.payload.toolCallId === step.toolCallId);
  const outcome = results?.payload.outcomes.find((each: any) => each.toolCallId === step.toolCallId);
  let args: Record<string, unknown> | undefined = started?.payload.arguments ?? asked?.payload.arguments;
  if (!args)
    for (const entry of entries.values())
      if (entry.kind === "model_output" && entry.seq < step.seq)
        for (const each of entry.payload.message.parts)
          if (each.kind === "tool_call" && each.payload.toolCallId === step.toolCallId) args = each.payload.arguments;
  return (
    <>
      <h3>Arguments</h3>
      {args ? <Arguments args={args} /> : <p class="dim">They are in the model's answer before this step.</p>}
      <h3>
        {part?.payload.isError ? "What went wrong" : "What it returned"} {outcome && <span class="dim">{outcome.status}</span>}
      </h3>
      {part ? <pre class="raw" dir="auto">{resultText(part.payload)}</pre> : <p class="dim">Nothing yet.</p>}
      {outcome?.artifact && (
        <p>
          {inFile ? "The whole output" : <a href={`api/blobs/${encodeURIComponent(outcome.artifact)}`}>The whole output</a>} is kept apart.
        </p>
      )}
      {outcome?.traceback && <pre class="raw">{outcome.traceback}</pre>}
    </>
  );
}

function Time({ step, run }: { step: Step; run?: RunSpan }) {
  const facts: [string, string | undefined][] = [
    ["Began", `${clock(step.at)}, ${new Date(step.at).toLocaleDateString()}`],
    ["Took", duration(step.ms)],
    ["Waited for a person", duration(step.waited)],
    ["Attempts", step.attempts ? String(step.attempts) : undefined],
    ["Input", step.input !== undefined ? `${step.input.toLocaleString()} tokens` : undefined],
    ["From the cache", step.cached !== undefined && step.input ? `${step.cached.toLocaleString()} tokens, ${Math.round((step.cached / step.input) * 100)} %` : undefined],
    ["Output", step.output !== undefined ? `${step.output.toLocaleString()} tokens` : undefined],
    ["Cost", money(step.cost)],
    ["Error", step.error],
    ["Run", run ? `${run.number} · ${run.status ?? "running"} · ${duration(run.ms)} · ${money(run.cost)}` : undefined],
    ["Entries", step.entries.map((seq) => `#${seq}`).join(" ")],
  ];
  return (
    <dl class="facts-d">
      {facts
        .filter(([, value]) => value)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd dir="auto">{value}</dd>
          </div>
        ))}
    </dl>
  );
}

function Widgets({ id, seq }: { id: string; seq: number }) {
  const [screen, setScreen] = useState<string | null | undefined>();
  useEffect(() => {
    const stop = new AbortController();
    ask<{ text: string | null }>(`${place(id)}/screen/${seq}`, { signal: stop.signal }).then((found) => setScreen(found.text ?? null), () => undefined);
    return () => stop.abort();
  }, [id, seq]);
  if (screen === undefined) return <p class="dim">…</p>;
  return screen === null ? <p class="dim">No widget had anything on the screen here.</p> : <pre class="raw">{screen}</pre>;
}

export function Detail(props: {
  id: string;
  step?: Step;
  run?: RunSpan;
  saw?: Saw;
  asked?: Step;
  entries: Map<number, Entry>;
  tab: string;
  all: boolean;
  open: boolean;
  onTab: (tab: string) => void;
  onAll: (all: boolean) => void;
  onMove: (by: number) => void;
  onClose: () => void;
  onFork: () => void;
  onWhatIf?: () => void;
}) {
  const { step } = props;
  if (!step)
    return (
      <aside class="detail" aria-label="Detail">
        <p class="dim pad">Select a step to see what the model saw there.</p>
      </aside>
    );
  const tab = props.tab === "tool" && step.kind !== "tool" ? "saw" : props.tab;
  return (
    <aside class={`detail ${props.open ? "open" : ""}`} aria-label={`Entry ${step.seq}`}>
      <header>
        <button class="btn sq back" aria-label="Back to the conversation" onClick={props.onClose}>
          <Icon name="left" />
        </button>
        <div class="grow">
          <h2>
            <span class="g">#{step.seq}</span> {nameOf(step)}
          </h2>
          <p class="dim">
            {[clock(step.at), step.kind === "model" ? step.detail : undefined, money(step.cost), duration(step.ms)].filter(Boolean).join(" · ")}
          </p>
        </div>
        {props.onWhatIf && ["model", "tool", "input"].includes(step.kind) ? (
          <button class="btn whatif" onClick={props.onWhatIf}>
            <Icon name="fork" /> What if… <kbd>W</kbd>
          </button>
        ) : inFile ? null : (
          <button class="btn" onClick={props.onFork} title="A new session that shares the past up to here">
            <Icon name="fork" /> Branch here
          </button>
        )}
        <button class="btn sq bare" aria-label="Previous step" onClick={() => props.onMove(-1)}>
          <Icon name="left" />
        </button>
        <button class="btn sq bare" aria-label="Next step" onClick={() => props.onMove(1)}>
          <Icon name="right" />
        </button>
      </header>
      <div class="tabs" role="tablist" aria-label="Detail">
        {TABS.map((each) => (
          <button key={each} role="tab" aria-selected={tab === each} disabled={each === "tool" && step.kind !== "tool"} onClick={() => props.onTab(each)}>
            {NAMES[each]}
          </button>
        ))}
      </div>
      <div class="tabbody" role="tabpanel" aria-label={NAMES[tab]}>
        {tab === "saw" && <SawTab saw={props.saw} step={step} asked={props.asked} entries={props.entries} all={props.all} onAll={props.onAll} />}
        {tab === "raw" && <Raw id={props.id} step={step} />}
        {tab === "tool" && <ToolTab step={step} entries={props.entries} />}
        {tab === "time" && <Time step={step} run={props.run} />}
        {tab === "widgets" && <Widgets id={props.id} seq={step.end} />}
      </div>
    </aside>
  );
}
