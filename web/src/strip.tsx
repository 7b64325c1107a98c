// The whole session at a glance: a bar for each step, below it how full the context was; and what fills the
// window at one call.

import { useMemo, useRef } from "preact/hooks";

import type { Saw, Step, Timeline } from "./api";
import { duration, money, nameOf, tokens } from "./format";

export type Widths = "steps" | "time" | "cost";

const WIDE = 1000;
const BARS = 2000;

function weight(step: Step, widths: Widths): number {
  if (widths === "time") return Math.max(1, step.ms ?? 0);
  if (widths === "cost") return Math.max(0.0001, step.cost ?? 0);
  return 1;
}

const colour = (step: Step) =>
  step.status === "failed" || step.status === "unknown"
    ? "fail"
    : step.status === "waiting"
      ? "wait"
      : step.kind === "model"
        ? "model"
        : step.kind === "widget"
          ? "add"
          : step.kind === "input"
            ? "ink"
            : "tool";

export function Strip(props: {
  timeline: Timeline;
  branches: Map<number, string>;
  selected?: number;
  shown: [number, number];
  widths: Widths;
  onWidths: (widths: Widths) => void;
  onSelect: (seq: number) => void;
  foldAt?: number;
  status: string;
}) {
  const { timeline, widths } = props;
  const box = useRef<SVGSVGElement>(null);
  const drawn = useMemo(() => {
    const steps = timeline.steps;
    const total = steps.reduce((sum, step) => sum + weight(step, widths), 0) || 1;
    const tallest = steps.reduce((most, step) => Math.max(most, Math.log1p(step.ms ?? 0)), 1);
    const most = steps.reduce((most, step) => Math.max(most, step.input ?? 0), 1);
    const paths: Record<string, string> = {};
    const marks: { x: number; kind: string; text?: string }[] = [];
    const at = new Map<number, [number, number]>();
    const saw: string[] = [];
    const cached: string[] = [];
    const bars: Record<string, string[]> = {};
    let sent: Step | undefined;
    let since = 0;
    let x = 0;
    // The context stays as it is until the next call, or a fold.
    const hold = (upto: number) => {
      if (!sent?.input) return;
      const y = 76 - (sent.input / most) * 26;
      const c = 76 - ((sent.cached ?? 0) / most) * 26;
      const to = Math.max(upto, since + 1).toFixed(2);
      saw.push(`M${since.toFixed(2)} 76V${y.toFixed(2)}H${to}V76z`);
      cached.push(`M${since.toFixed(2)} 76V${c.toFixed(2)}H${to}V76z`);
    };
    const skip = Math.max(1, Math.ceil(steps.length / BARS));
    steps.forEach((step, index) => {
      const width = (weight(step, widths) / total) * WIDE;
      at.set(step.seq, [x, width]);
      if (index % skip === 0 || step.status === "failed" || step.status === "waiting") {
        const bar = step.kind === "model" || step.kind === "tool" || step.kind === "widget";
        const height = bar ? 3 + (Math.log1p(step.ms ?? 0) / tallest) * 26 : step.kind === "input" && skip === 1 ? 24 : 0;
        const wide = Math.max(0.6, Math.min(11, width * 0.62 * skip));
        const left = x + width / 2 - (step.kind === "input" ? 0.8 : wide / 2);
        const name = step.decision && step.status !== "waiting" ? "decided" : colour(step);
        if (height > 0) {
          const w = step.kind === "input" ? 1.6 : wide;
          (bars[name] ??= []).push(`M${left.toFixed(2)} ${(34 - height).toFixed(2)}h${w.toFixed(2)}v${height.toFixed(2)}h${(-w).toFixed(2)}z`);
        }
      }
      if (step.status === "failed" || step.status === "unknown" || (step.attempts ?? 1) > 1) marks.push({ x: x + width / 2, kind: "failed" });
      if (step.kind === "fold")
        marks.push({ x: x + width / 2, kind: "fold", text: `fold −${tokens((step.before ?? 0) - (step.after ?? 0))}` });
      if (props.branches.size) for (const seq of step.entries) if (props.branches.has(seq)) marks.push({ x: x + width / 2, kind: "branch" });
      if (step.kind === "fold" || (step.kind === "model" && step.input)) {
        hold(x);
        sent = step.kind === "model" ? step : undefined;
        since = x;
      }
      x += width;
    });
    hold(x);
    for (const [name, parts] of Object.entries(bars)) paths[name] = parts.join("");
    return { paths, marks, at, saw: saw.join(""), cached: cached.join(""), most };
  }, [timeline, widths, props.branches]);

  const chosen = props.selected !== undefined ? drawn.at.get(props.selected) : undefined;
  const from = drawn.at.get(props.shown[0])?.[0] ?? 0;
  const upto = drawn.at.get(props.shown[1]);
  const end = upto ? upto[0] + upto[1] : from;
  const pick = (event: PointerEvent) => {
    if (event.type === "pointermove" && event.buttons !== 1) return;
    const area = box.current!.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * WIDE;
    let best: number | undefined;
    for (const [seq, [left, width]] of drawn.at) {
      if (left > x) break;
      if (x <= left + Math.max(width, 0.5) || best === undefined) best = seq;
      best = seq;
    }
    if (best !== undefined) props.onSelect(best);
  };
  const step = timeline.steps.find((each) => each.seq === props.selected);
  return (
    <div class="map">
      <div class="ctl">
        <div class="seg" role="radiogroup" aria-label="Widths of the strip">
          {(["steps", "time", "cost"] as Widths[]).map((each) => (
            <button key={each} role="radio" aria-checked={widths === each} onClick={() => props.onWidths(each)}>
              {each[0].toUpperCase() + each.slice(1)}
            </button>
          ))}
        </div>
      </div>
      <div class="runs" aria-hidden="true">
        {timeline.runs.slice(-8).map((run) => {
          const left = drawn.at.get(run.first)?.[0] ?? 0;
          return (
            <span key={run.runId} style={{ left: `${left / 10}%` }}>
              <b>Run {run.number}</b> <i>{[run.number === timeline.runs.length && props.status === "awaiting_human" ? "waits" : (run.status ?? "running"), duration(run.ms), money(run.cost)].filter(Boolean).join(" · ")}</i>
            </span>
          );
        })}
      </div>
      <svg
        ref={box}
        class="bars"
        viewBox={`0 0 ${WIDE} 84`}
        preserveAspectRatio="none"
        role="slider"
        tabIndex={0}
        aria-label="Steps of the session"
        aria-valuemin={1}
        aria-valuemax={timeline.entries}
        aria-valuenow={props.selected ?? 1}
        aria-valuetext={step ? `entry ${step.seq}, ${nameOf(step)}, ${step.status}` : "nothing selected"}
        onPointerDown={pick}
        onPointerMove={pick}
      >
        <rect class="wash" x={from} y="2" width={Math.max(0, end - from)} height="74" />
        <path class="base" d="M0 34H1000M0 76H1000" />
        {Object.entries(drawn.paths).map(([name, path]) => (
          <path key={name} class={name} d={path} />
        ))}
        <path class="saw" d={drawn.saw} />
        <path class="cached" d={drawn.cached} />
        {drawn.marks
          .filter((mark) => mark.kind === "fold")
          .map((mark, at) => (
            <path key={at} class="foldmark" d={`M${mark.x} 0V78`} />
          ))}
        {chosen && <rect class="chosen" x={chosen[0]} y="1" width={Math.max(chosen[1], 4)} height="76" />}
      </svg>
      <div class="marks" aria-hidden="true">
        {drawn.marks.slice(0, 200).map((mark, at) => (
          <span key={at} class={mark.kind} style={{ left: `${mark.x / 10}%` }}>
            {mark.kind === "fold" ? mark.text : ""}
          </span>
        ))}
      </div>
    </div>
  );
}

const GROUPS: [string, (kind: string) => boolean][] = [
  ["results", (kind) => kind === "tool results"],
  ["digest", (kind) => kind.includes("folded") || kind === "segments"],
  ["tools", (kind) => kind === "tools"],
  ["words", (kind) => kind === "user" || kind === "assistant" || kind === "thinking"],
  ["system", (kind) => kind === "system prompt"],
  ["screen", (kind) => kind === "live screen" || kind === "hints" || kind === "branch"],
];

export function Gauge({ saw, step }: { saw?: Saw; step?: Step }) {
  if (!saw) return <div class="gauge" aria-label="Window" />;
  const view = saw.view;
  const total = view.gauge.reduce((sum, part) => sum + part.tokens, 0);
  const window = view.window ?? Math.max(total, view.foldAt ?? 0);
  const groups = GROUPS.map(([name, fits]) => {
    const inside = view.gauge.filter((part) => fits(part.kind));
    return { name, tokens: inside.reduce((sum, part) => sum + part.tokens, 0) };
  }).filter((group) => group.tokens > 0);
  const used = step?.input ?? total;
  const cached = step?.input && step.cached ? ` · ${Math.round((step.cached / step.input) * 100)} % cached` : "";
  return (
    <div class="gauge" role="group" aria-label={`Window at call ${view.call}`}>
      <div class="gt">
        <b>Window at call {view.call}</b> <span class="dim">{view.target.model}</span>
        <span class="grow" />
        <b>{tokens(used)}</b> <span class="dim">{view.window ? `of ${tokens(view.window)}` : "of an unknown window"}{cached}</span>
      </div>
      <div class="bar">
        {groups.map((group) => (
          <i key={group.name} class={group.name} style={{ width: `${(group.tokens / window) * 100}%` }} />
        ))}
        {view.foldAt && view.foldAt < window && <u class="gtick" style={{ left: `${(view.foldAt / window) * 100}%` }} />}
      </div>
      {view.foldAt && (
        <div class="gfold" aria-hidden="true">
          <span style={{ left: `${Math.min(88, (view.foldAt / window) * 100)}%` }}>fold at {tokens(view.foldAt)}</span>
        </div>
      )}
      <div class="leg">
        {groups
          .sort((a, b) => b.tokens - a.tokens)
          .map((group) => (
            <span key={group.name}>
              <i class={group.name} /> {group.name} {tokens(group.tokens)}
            </span>
          ))}
      </div>
    </div>
  );
}
