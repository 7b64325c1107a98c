// The conversation: one row for each step, of which only those near the screen are in the page.

import { type ComponentChildren, options } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { ask, type Entry, type Glance, type Pending, type RunSpan, type Step } from "./api";
import { Ask } from "./approval";
import { inFile, picture } from "./file";
import { clock, count, duration, money, resultText, tokens } from "./format";
import { Icon, toolIcon } from "./icons";
import { linkTo } from "./main";
import { Markdown } from "./markdown";

const NEAR = 900;
const GUESS: Record<string, number> = { model: 84, input: 66, tool: 48, run_started: 44, run_ended: 40, fold: 44 };

function wordsOf(entry: Entry | undefined): string {
  const parts: any[] = entry?.payload?.message?.parts ?? [];
  return parts
    .filter((part) => part.kind === "text")
    .map((part) => part.payload.text)
    .join("");
}

function Thinking({ entry }: { entry?: Entry }) {
  const parts: any[] = entry?.payload?.message?.parts ?? [];
  const text = parts
    .filter((part) => part.kind === "thinking" && part.payload.text)
    .map((part) => part.payload.text)
    .join("\n");
  return text ? (
    <p class="think" dir="auto">
      ⋯ {text.length > 160 ? `${text.slice(0, 160)}…` : text}
    </p>
  ) : null;
}

function Child({ id }: { id: string }) {
  const [glance, setGlance] = useState<Glance | undefined>();
  useEffect(() => {
    if (inFile || id.includes(",")) return;
    const stop = new AbortController();
    ask<Record<string, Glance>>(`/glances?${new URLSearchParams({ sessions: id })}`, { signal: stop.signal }).then((found) => setGlance(found[id]), () => undefined);
    return () => stop.abort();
  }, [id]);
  return (
    <section class="child" aria-label="Sub-agent">
      <header>
        <Icon name="child" /> <b>Sub-agent</b>
        <span class="dim">{glance ? count(glance.calls ?? 0, "model call") : inFile ? id : ""}</span>
        <span class="grow" />
        <span class="dim">{money(glance?.cost)}</span>
      </header>
      {glance?.last && <p dir="auto">{glance.last}</p>}
      {!inFile && (
        <a href={linkTo(id)}>
          Open its session <Icon name="right" />
        </a>
      )}
    </section>
  );
}

const SHOWN = ["image/png", "image/jpeg", "image/gif", "image/webp"];

function Files({ parts }: { parts: any[] }) {
  const found = parts.filter((part) => part.kind === "image" || part.kind === "file_ref");
  if (found.length === 0) return null;
  return (
    <div class="files">
      {found.map(({ kind, payload }, at) => {
        const name = payload.name ?? payload.path ?? "";
        const kept = payload.url?.startsWith("blob:") ? picture(payload.url.slice(5)) : undefined;
        const source = payload.data ? `data:${payload.mimeType};base64,${payload.data}` : kept;
        return kind === "image" && source && SHOWN.includes(payload.mimeType) ? (
          <img key={at} src={source} alt={name || "a picture"} loading="lazy" />
        ) : (
          <span key={at} class="chip">
            <Icon name="file" /> {name || kind.replace("_ref", "")} {payload.mimeType && <small>{payload.mimeType}</small>}
          </span>
        );
      })}
    </div>
  );
}

export interface RowProps {
  step: Step;
  run?: RunSpan;
  entries: Map<number, Entry>;
  open: boolean;
  selected: boolean;
  live?: string;
  progress?: string;
  branches: [number, string][];
  pending?: Pending;
  online: boolean;
  onChange: () => void;
}

function Body(props: RowProps): ComponentChildren {
  const { step, entries, open } = props;
  const found = step.entries.map((seq) => entries.get(seq));
  switch (step.kind) {
    case "run_started":
      return (
        <div class="runline">
          <b>Run {step.run}</b>
          <span>
            {clock(step.at)}
            {props.run?.model ? ` · ${props.run.model}` : ""}
            {props.run?.agent && props.run.agent !== "agent" ? ` · ${props.run.agent}` : ""}
          </span>
        </div>
      );
    case "run_ended": {
      const run = props.run;
      if (step.title === "aborted" && !step.error)
        return (
          <div class="runline end">
            <span>The branch begins here; this run stayed in the session it comes from</span>
          </div>
        );
      const word = step.title === "completed" ? "Completed" : step.title === "aborted" ? "Aborted" : "Failed";
      const counts = run
        ? [count(run.calls ?? 0, "model call"), count(run.tools ?? 0, "tool call") + (run.failed ? `, ${run.failed} failed` : "")].join(" · ")
        : "";
      return (
        <div class={`runline end ${step.status}`}>
          <span>
            {word} in {duration(step.ms)} · {counts}
          </span>
          {step.error && (
            <p class="bad" dir="auto">
              {step.error}
            </p>
          )}
        </div>
      );
    }
    case "fold":
      return (
        <div class="foldline">
          <Icon name="fold" /> <b>Fold</b> {tokens(step.before)} → {tokens(step.after)} tokens <span class="dim">{step.title}</span>
        </div>
      );
    case "input": {
      const text = wordsOf(found[0]) || step.title || "";
      const who = step.detail === "correction" ? "turnlog" : step.detail === "host" ? "host" : "You";
      const when = step.detail === "steering" ? "while the run was in progress" : step.detail === "correction" ? "asks for a correction" : "";
      return (
        <>
          <div class="who">
            <b>{who}</b> <span>{when}</span>
          </div>
          <div class="said" dir="auto">
            {text}
          </div>
          <Files parts={found[0]?.payload?.message?.parts ?? []} />
        </>
      );
    }
    case "model": {
      const output = found.find((entry) => entry?.kind === "model_output");
      const failures = found.filter((entry) => entry?.kind === "model_call_failed");
      const text = output ? wordsOf(output) : (props.live ?? "");
      const calls = (output?.payload?.message?.parts ?? []).filter((part: any) => part.kind === "tool_call");
      return (
        <>
          {failures.map((entry) => (
            <div key={entry!.seq} class="retryline">
              <Icon name="retry" /> {entry!.payload.error.code}: {entry!.payload.error.message}
              {entry!.payload.partial && <s dir="auto">{entry!.payload.partial}</s>}
            </div>
          ))}
          <Thinking entry={output} />
          {output ? (
            text ? (
              <Markdown text={text} />
            ) : calls.length ? (
              <p class="dim">calls {calls.map((part: any) => part.payload.toolName).join(", ")}</p>
            ) : (
              <p class="dim">{step.title || (step.status === "failed" ? "" : "…")}</p>
            )
          ) : (
            <div class="prose live" dir="auto">
              {text || (step.status === "running" ? <span class="dim">thinking…</span> : step.title)}
            </div>
          )}
        </>
      );
    }
    case "tool": {
      const results = found.find((entry) => entry?.kind === "tool_results");
      const part = results?.payload?.message?.parts?.find((each: any) => each.payload.toolCallId === step.toolCallId);
      const outcome = results?.payload?.outcomes?.find((each: any) => each.toolCallId === step.toolCallId);
      const child = found.map((entry) => entry?.payload?.childSessionId ?? entry?.payload?.sessionId).find(Boolean) ?? outcome?.childSessionId;
      const text = part ? resultText(part.payload) : "";
      const decision = step.decision
        ? `${{ approve: "approved", deny: "denied", modify: "changed and approved", abort: "aborted", expire: "lapsed" }[step.decision] ?? step.decision} by ${step.by}${step.waited ? ` after ${duration(step.waited)}` : ""}`
        : "";
      return (
        <>
          <div class="tool">
            <Icon name={toolIcon(step.tool)} /> <b>{step.tool}</b> <span class="what">{step.title}</span>
            {step.status === "running" && <span class="now">● running</span>}
          </div>
          {props.pending && <Ask asked={props.pending} online={props.online} onChange={props.onChange} />}
          {!props.pending && (
            <div class={`res ${step.status}`} dir="auto">
              {[decision, step.status === "waiting" ? `waits: ${step.detail ?? ""}` : step.detail].filter(Boolean).join(" · ")}
            </div>
          )}
          {step.status === "running" && props.progress && <pre class="out">{props.progress}</pre>}
          {open && text && <pre class="out">{text}</pre>}
          <Files parts={Array.isArray(part?.payload.content) ? part.payload.content : []} />
          {child && <Child id={child} />}
        </>
      );
    }
    case "recap":
      return (
        <>
          <div class="who">
            <b>Recap</b> <span>what the model keeps of what came before</span>
          </div>
          <Markdown text={found[0]?.payload?.summary ?? step.title ?? ""} />
        </>
      );
    default:
      return (
        <div class="aside" dir="auto">
          <b>{step.kind === "prompt" ? "Instructions" : step.kind.replace("_", " ")}</b> {step.title}
          {step.detail ? ` · ${step.detail}` : ""}
        </div>
      );
  }
}

const WHOLE = ["run_started", "run_ended", "fold"];

interface RowMore {
  onSelect: () => void;
  onOpen: () => void;
  measure: (seq: number, node: HTMLElement) => void;
  watch: ResizeObserver;
}

function Row(props: RowProps & RowMore) {
  const { step } = props;
  const node = useRef<HTMLLIElement>(null);
  useLayoutEffect(() => props.measure(step.seq, node.current!));
  useEffect(() => {
    // A picture that arrives, or a card that is filled, makes a row larger without drawing it again.
    const row = node.current!;
    props.watch.observe(row);
    return () => props.watch.unobserve(row);
  }, []);
  const kind = step.status === "failed" || step.status === "unknown" ? "fail" : step.status === "waiting" ? "wait" : step.kind;
  const whole = WHOLE.includes(step.kind);
  return (
    <li
      ref={node}
      class={`row k-${step.kind} m-${kind} ${props.selected ? "sel" : ""}`}
      data-seq={step.seq}
      tabIndex={props.selected ? 0 : -1}
      aria-current={props.selected ? "true" : undefined}
      onClick={(event) => {
        if ((event.target as HTMLElement).closest("a, button, textarea, input, pre")) return;
        if (getSelection()?.toString()) return;
        if (props.selected && step.kind === "tool") props.onOpen();
        props.onSelect();
      }}
    >
      {!whole && <span class="g">{step.seq}</span>}
      <div class="c">
        <Body {...props} />
        {props.branches.map(([seq, name]) => (
          <a key={name} class="chip fork" href={inFile ? undefined : linkTo(name)} title={`branches at entry ${seq}`}>
            <Icon name="fork" /> {name}
          </a>
        ))}
      </div>
      {!whole && (
        <span class="m">
          {step.kind === "input" ? clock(step.at).slice(0, 5) : duration(step.ms)}
          {step.cost !== undefined && <small>{money(step.cost)}</small>}
        </span>
      )}
    </li>
  );
}

export interface ConversationProps {
  steps: Step[];
  runs: RunSpan[];
  entries: Map<number, Entry>;
  selected?: number;
  opened: Set<number>;
  live: string;
  progress: Map<string, string>;
  branches: Map<number, string>;
  pending: Map<string, Pending>;
  online: boolean;
  follow: boolean;
  onFollow: (follow: boolean) => void;
  onSelect: (seq: number) => void;
  onOpen: (seq: number) => void;
  onShown: (first: number, last: number) => void;
  onChange: () => void;
}

export function Conversation(props: ConversationProps) {
  const { steps } = props;
  const box = useRef<HTMLDivElement>(null);
  const heights = useRef(new Map<number, number>());
  const [, redraw] = useState(0);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(800);
  const shift = useRef(0);
  const was = useRef(0);
  const [whole, setWhole] = useState(false);

  useEffect(() => {
    // On paper all rows are there. The page is drawn before this returns, since the browser prints then.
    const draw = (now: boolean) => {
      const before = options.debounceRendering;
      options.debounceRendering = (work) => work();
      setWhole(now);
      options.debounceRendering = before;
    };
    const begin = () => draw(true);
    const end = () => draw(false);
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);

  const height = (step: Step) => heights.current.get(step.seq) ?? GUESS[step.kind] ?? 40;
  const offsets: number[] = new Array(steps.length + 1);
  offsets[0] = 0;
  for (let at = 0; at < steps.length; at += 1) offsets[at + 1] = offsets[at] + height(steps[at]);
  const total = offsets[steps.length];
  const find = (y: number) => {
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (offsets[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, steps.length - 1));
  };
  const first = whole ? 0 : find(Math.max(0, top - NEAR));
  const last = whole ? steps.length - 1 : Math.min(steps.length - 1, find(top + tall + NEAR));
  const seen: [number, number] = [find(top + 4), find(top + tall - 4)];

  const measure = useCallback((seq: number, node: HTMLElement) => {
    const now = node.offsetHeight;
    const before = heights.current.get(seq);
    if (now !== before) {
      heights.current.set(seq, now);
      shift.current += 1;
    }
  }, []);

  const watch = useMemo(
    () =>
      new ResizeObserver((changed) => {
        for (const { target } of changed) measure(Number((target as HTMLElement).dataset.seq), target as HTMLElement);
        if (shift.current > 0) redraw((count) => count + 1);
      }),
    [],
  );
  useEffect(() => () => watch.disconnect(), []);

  useLayoutEffect(() => {
    if (shift.current === 0) return;
    shift.current = 0;
    // What is read stays where it is when rows above it turn out larger or smaller.
    const anchor = steps[seen[0]];
    const before = anchor ? offsets[seen[0]] : 0;
    let now = 0;
    for (const step of steps) {
      if (step === anchor) break;
      now += height(step);
    }
    if (props.follow) box.current!.scrollTop = box.current!.scrollHeight;
    else if (anchor && now !== before) box.current!.scrollTop += now - before;
    redraw((count) => count + 1);
  });

  useEffect(() => {
    const node = box.current!;
    const watch = new ResizeObserver(() => {
      setTall(node.clientHeight);
      heights.current.clear();
      redraw((count) => count + 1);
    });
    watch.observe(node);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    if (steps[seen[0]] && steps[seen[1]]) props.onShown(steps[seen[0]].seq, steps[seen[1]].seq);
  }, [steps[seen[0]]?.seq, steps[seen[1]]?.seq]);

  useLayoutEffect(() => {
    if (props.follow) box.current!.scrollTop = box.current!.scrollHeight;
  }, [props.live, steps.length, props.follow, total]);

  useLayoutEffect(() => {
    if (props.selected === undefined || props.follow) return;
    const at = steps.findIndex((step) => step.seq === props.selected);
    if (at < 0) return;
    const node = box.current!;
    const begin = offsets[at];
    const end = offsets[at + 1];
    if (begin < node.scrollTop + 8) node.scrollTop = Math.max(0, begin - 60);
    else if (end > node.scrollTop + node.clientHeight - 8) node.scrollTop = Math.min(begin - 60, end - node.clientHeight + 60);
    setTop(node.scrollTop);
  }, [props.selected, steps.length > 0]);

  const scrolled = () => {
    const node = box.current!;
    const near = node.scrollHeight - node.scrollTop - node.clientHeight < 60;
    // Rows that turn out larger move the end away too; only a reader who goes up leaves it.
    if (near || node.scrollTop < was.current - 2) if (near !== props.follow) props.onFollow(near);
    was.current = node.scrollTop;
    setTop(node.scrollTop);
  };
  const spots = [...props.branches];
  return (
    <div class="scroll" ref={box} onScroll={scrolled}>
      <ol class="conv" aria-label="Conversation" style={{ height: whole ? "auto" : `${total + 24}px` }}>
        <li aria-hidden="true" style={{ height: `${offsets[first]}px` }} />
        {steps.slice(first, last + 1).map((step) => (
          <Row
            key={step.seq}
            step={step}
            run={props.runs[(step.run ?? 0) - 1]}
            entries={props.entries}
            open={props.opened.has(step.seq)}
            selected={props.selected === step.seq}
            live={step.status === "running" ? props.live : undefined}
            progress={step.toolCallId ? props.progress.get(step.toolCallId) : undefined}
            branches={spots.filter(([seq]) => step.entries.includes(seq))}
            pending={step.toolCallId ? props.pending.get(step.toolCallId) : undefined}
            online={props.online}
            onChange={props.onChange}
            onSelect={() => props.onSelect(step.seq)}
            onOpen={() => props.onOpen(step.seq)}
            measure={measure}
            watch={watch}
          />
        ))}
      </ol>
    </div>
  );
}
