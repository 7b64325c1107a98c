// Branches: the tree of a session and what came of each, and below it two of them side by side.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { ask, type Entry, type Glance, type Info, place, type SessionView, type Step, type Timeline } from "./api";
import { Arguments } from "./approval";
import { count, duration, money, nameOf, statusOf } from "./format";
import { Icon, Mark, toolIcon } from "./icons";
import { linkTo } from "./main";

interface Compared {
  a: string;
  b: string;
  shared: number;
  stepsA: Step[];
  stepsB: Step[];
  timelineA: Timeline;
  timelineB: Timeline;
}

interface Twig {
  info: Info;
  depth: number;
}

export const toCompare = (a: string, b?: string) => `#/compare/${encodeURIComponent(a)}/${b ? encodeURIComponent(b) : ""}`;

const same = (a?: Step, b?: Step) => a && b && a.kind === b.kind && a.title === b.title && a.detail === b.detail && a.status === b.status;

/** Pairs of the longest common run of `a` and `b`; what has no partner stands alone, in its place. */
function align<T>(a: T[], b: T[], alike: (one: T, two: T) => unknown): [T | undefined, T | undefined][] {
  const left = a.slice(0, 400);
  const right = b.slice(0, 400);
  const best = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i -= 1)
    for (let j = right.length - 1; j >= 0; j -= 1)
      best[i][j] = alike(left[i], right[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const rows: [T | undefined, T | undefined][] = [];
  let i = 0;
  let j = 0;
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && alike(left[i], right[j])) rows.push([left[i++], right[j++]]);
    else if (i >= left.length || (j < right.length && best[i][j + 1] >= best[i + 1][j])) rows.push([undefined, right[j++]]);
    else rows.push([left[i++], undefined]);
  }
  return rows;
}

function pairUp(a: Step[], b: Step[]): [Step | undefined, Step | undefined][] {
  const rows: [Step | undefined, Step | undefined][] = [];
  let only: [Step[], Step[]] = [[], []];
  const flush = () => {
    // What differs stands beside what is of its kind.
    rows.push(...align(only[0], only[1], (one, two) => one.kind === two.kind && one.tool === two.tool));
    only = [[], []];
  };
  for (const [one, two] of align(a, b, same)) {
    if (one && two) {
      flush();
      rows.push([one, two]);
    } else if (one) only[0].push(one);
    else only[1].push(two!);
  }
  flush();
  return rows;
}

/** The words of one side, with those that the other side lacks marked. */
function marked(text: string, other: string, side: "d" | "a"): ComponentChildren {
  const mine = text.split(/(\s+)/);
  const theirs = other.split(/(\s+)/);
  if (!other || mine.length > 400 || theirs.length > 400) return text;
  const out: ComponentChildren[] = [];
  let held = "";
  const flush = () => {
    if (held) out.push(<mark class={side}>{held}</mark>);
    held = "";
  };
  for (const [one, two] of align(mine, theirs, (x, y) => x === y)) {
    if (one === undefined) continue;
    if (two === undefined) held += one;
    else if (held && !one.trim()) held += one;
    else {
      flush();
      out.push(one);
    }
  }
  flush();
  return out;
}

/** From the root of a session, all its branches. */
async function grow(id: string): Promise<Twig[]> {
  let top = (await ask<SessionView>(place(id))).info;
  for (let up = 0; top.parentSessionId && up < 20; up += 1) {
    const above = await ask<SessionView>(place(top.parentSessionId)).catch(() => undefined);
    if (!above) break;
    top = above.info;
  }
  const found: Twig[] = [];
  const visit = async (info: Info, depth: number): Promise<void> => {
    found.push({ info, depth });
    if (depth > 8 || found.length > 200) return;
    const below = (await ask<{ sessions: Info[] }>(`/sessions?${new URLSearchParams({ parent: info.sessionId, limit: "100" })}`)).sessions;
    below.sort((a, b) => (a.forkedAt ?? 0) - (b.forkedAt ?? 0));
    for (const each of below) await visit(each, depth + 1);
  };
  await visit(top, 0);
  return found;
}

function Tree({ id, twigs, glances, a, b }: { id: string; twigs: Twig[]; glances: Record<string, Glance>; a: string; b?: string }) {
  return (
    <table class="btree">
      <thead>
        <tr>
          <th>Leaves at</th>
          <th>Branch</th>
          <th>Status</th>
          <th class="num">Calls</th>
          <th class="num">Cost</th>
          <th class="num">Compare</th>
        </tr>
      </thead>
      <tbody>
        {twigs.map(({ info, depth }) => {
          const [mark, word] = statusOf(info.status);
          const glance = glances[info.sessionId];
          return (
            <tr key={info.sessionId}>
              <td class="limb">
                <i style={{ marginLeft: `${depth * 18}px` }} class={depth === 0 ? "root" : mark === "fail" ? "fail" : ""} />
                {info.forkedAt ? `#${info.forkedAt}` : ""}
              </td>
              <td>
                <a href={linkTo(info.sessionId)}>
                  <b dir="auto">{depth === 0 ? "main" : info.sessionId}</b>
                </a>
                <small dir="auto">{[depth === 0 ? (info.title ?? info.about ?? info.sessionId) : "", glance?.model, glance?.last].filter(Boolean).join(" · ")}</small>
              </td>
              <td>
                <span class={`st ${mark}`}>
                  <Mark kind={mark} /> {word}
                </span>
              </td>
              <td class="num">{glance?.calls ?? ""}</td>
              <td class="num">{money(glance?.cost)}</td>
              <td class="num">
                <a class={`ab ${info.sessionId === a ? "a" : ""}`} href={toCompare(info.sessionId, b)} aria-label={`${info.sessionId} as A`} aria-current={info.sessionId === a ? "true" : undefined}>
                  A
                </a>{" "}
                <a class={`ab ${info.sessionId === b ? "b" : ""}`} href={toCompare(a || id, info.sessionId)} aria-label={`${info.sessionId} as B`} aria-current={info.sessionId === b ? "true" : undefined}>
                  B
                </a>
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

const sum = (steps: Step[], of: (step: Step) => number | undefined) => steps.reduce((all, step) => all + (of(step) ?? 0), 0);

function Change({ from, to, less }: { from: number; to: number; less?: boolean }) {
  if (from === to || from === 0) return null;
  const share = Math.round(((to - from) / from) * 100);
  return <em class={share < 0 === (less ?? true) ? "good" : "worse"}>{share > 0 ? `+${share}` : `−${-share}`} %</em>;
}

function Facts({ both, one, two }: { both: Compared; one: string; two: string }) {
  const { stepsA: a, stepsB: b } = both;
  const costs = [sum(a, (step) => step.cost), sum(b, (step) => step.cost)];
  const times = [sum(a, (step) => (step.ms ?? 0) - (step.waited ?? 0)), sum(b, (step) => (step.ms ?? 0) - (step.waited ?? 0))];
  const models = [a, b].map((steps) => steps.filter((step) => step.kind === "model").length);
  const reuse = [a, b].map((steps) => {
    const input = sum(steps, (step) => step.input);
    return input ? Math.round((sum(steps, (step) => step.cached) / input) * 100) : 0;
  });
  const failed = [a, b].map((steps) => steps.filter((step) => step.status === "failed").length);
  const facts: [string, ComponentChildren, string][] = [
    ["Outcome", one === two ? "same" : "other", `${one} → ${two}`],
    [`Cost from #${both.shared + 1}`, <>{money(costs[1])} <Change from={costs[0]} to={costs[1]} /></>, `${money(costs[0])} → ${money(costs[1])}`],
    ["Time, without waits", <>{duration(times[1])} <Change from={times[0]} to={times[1]} /></>, `${duration(times[0])} → ${duration(times[1])}`],
    ["Model calls", String(models[1]), `${models[0]} → ${models[1]}`],
    ["From cache", `${reuse[1]} %`, `${reuse[0]} % → ${reuse[1]} %`],
    ["Failed steps", String(failed[1]), `${failed[0]} → ${failed[1]}`],
  ];
  return (
    <dl class="cfacts">
      {facts.map(([name, value, change]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
          <small>{change}</small>
        </div>
      ))}
    </dl>
  );
}

function wordsIn(step: Step, entries: Map<number, Entry>): string {
  for (const seq of step.entries) {
    const parts: any[] = entries.get(seq)?.payload?.message?.parts ?? [];
    const text = parts.filter((part) => part.kind === "text").map((part) => part.payload.text).join("");
    if (text && step.kind !== "tool") return text;
  }
  return step.title ?? "";
}

function Side(props: { id: string; step?: Step; other?: Step; entries: Map<number, Entry>; others: Map<number, Entry>; side: "d" | "a" }) {
  const { step, other, entries } = props;
  if (!step) return <div class="x" />;
  const started = step.entries.map((seq) => entries.get(seq)).find((entry) => entry?.kind === "tool_started" || entry?.kind === "approval_requested");
  const given = step.kind === "tool" && entries.size > 0 && step.status === "done" && !step.entries.some((seq) => entries.get(seq)?.kind === "tool_started");
  const differs = !same(step, other);
  const against = other && other.kind === step.kind ? other : undefined;
  return (
    <div>
      <a class="meta" href={linkTo(props.id, step.seq)}>
        #{step.seq} · {nameOf(step)}
        {step.ms !== undefined && ` · ${duration(step.ms)}`}
        {step.cost !== undefined && ` · ${money(step.cost)}`}
      </a>
      {step.kind === "tool" ? (
        <>
          <div class="tool">
            <Icon name={toolIcon(step.tool)} /> <b>{step.tool}</b> <span class="what">{step.title}</span>
            <span class="grow" />
            {step.decision && <span class="chip wait">asked</span>}
            {given && <span class="chip">from the record</span>}
          </div>
          {differs && started?.payload.arguments && <Arguments args={started.payload.arguments} />}
          <div class={`res ${step.status}`} dir="auto">
            {step.error ?? step.detail}
          </div>
        </>
      ) : (
        <div class="say" dir="auto">
          {differs && against ? marked(wordsIn(step, entries), wordsIn(against, props.others), props.side) : wordsIn(step, entries)}
          {step.error && <em class="bad"> {step.error}</em>}
        </div>
      )}
    </div>
  );
}

const entriesOf = async (id: string, after: number) => {
  const found = await ask<{ entries: Entry[] }>(`${place(id)}/entries?after=${after}&limit=500`);
  return new Map(found.entries.map((entry) => [entry.seq, entry]));
};

export function Compare({ a, b }: { a: string; b?: string }) {
  const [twigs, setTwigs] = useState<Twig[]>([]);
  const [glances, setGlances] = useState<Record<string, Glance>>({});
  const [both, setBoth] = useState<Compared | undefined>();
  const [texts, setTexts] = useState<[Map<number, Entry>, Map<number, Entry>]>([new Map(), new Map()]);
  const [problem, setProblem] = useState("");
  const place = useRef(-1);
  const second = b ?? twigs.find(({ info, depth }) => depth > 0 && info.sessionId !== a)?.info.sessionId;

  useEffect(() => {
    let gone = false;
    const look = async () => {
      const found = await grow(a);
      if (gone) return;
      setTwigs(found);
      const names = found.map(({ info }) => info.sessionId).filter((name) => !name.includes(","));
      setGlances(await ask<Record<string, Glance>>(`/glances?${new URLSearchParams({ sessions: names.slice(0, 100).join(",") })}`));
    };
    const load = async () => {
      try {
        await look();
        if (!second || second === a || gone) return;
        const found = await ask<Compared>(`/compare?${new URLSearchParams({ a, b: second })}`);
        const told = await Promise.all([entriesOf(a, found.shared), entriesOf(second, found.shared)]);
        if (gone) return;
        setBoth(found);
        setTexts(told);
      } catch (error) {
        if (!gone) setProblem((error as Error).message);
      }
    };
    load();
    // A branch that was just begun is still running.
    const timer = setInterval(() => document.visibilityState === "visible" && load(), 2000);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [a, second]);

  const rows = useMemo(() => (both ? pairUp(both.stepsA, both.stepsB) : []), [both]);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if ((event.target as HTMLElement).closest("input, textarea, dialog") || event.metaKey || event.ctrlKey) return;
      if (event.key !== "n" && event.key !== "N") return;
      const found = [...document.querySelectorAll<HTMLElement>(".pair.differs")];
      if (found.length === 0) return;
      place.current = (place.current + (event.key === "n" ? 1 : found.length - 1) + found.length) % found.length;
      found[place.current].scrollIntoView({ block: "center" });
      found[place.current].querySelector("a")?.focus();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);

  if (problem) return <p class="state bad">{problem}</p>;
  if (twigs.length === 0) return <div class="skeleton" aria-label="Loading" />;
  const root = twigs[0].info;
  const ended = (name: string) => statusOf(twigs.find(({ info }) => info.sessionId === name)?.info.status)[1];
  const model = (line: Timeline) => line.runs.at(-1)?.model ?? "";
  return (
    <main class="bpage" aria-label="Branches">
      <header class="bhead">
        <a class="btn sq bare" href={linkTo(a)} aria-label="Back to the session">
          <Icon name="left" />
        </a>
        <h1>Branches</h1> <span class="dim" dir="auto">{root.title ?? root.about ?? root.sessionId}</span>
        <span class="grow" />
        <a class="btn" href={linkTo(a)}>
          <Icon name="fork" /> New what if…
        </a>
      </header>
      <Tree id={root.sessionId} twigs={twigs} glances={glances} a={a} b={second} />
      {!second && <p class="dim pad">This session has no branch yet. Select a step and choose “What if…”.</p>}
      {both && both.b === second && (
        <section class="cmp" aria-label="Comparison">
          <div class="hd">
            {([["a", both.a, both.timelineA], ["b", both.b, both.timelineB]] as [string, string, Timeline][]).map(([side, name, line]) => {
              const [mark, word] = statusOf(twigs.find(({ info }) => info.sessionId === name)?.info.status);
              return (
                <div key={side}>
                  <span class={`ab ${side}`}>{side.toUpperCase()}</span> <a href={linkTo(name)}>{name === root.sessionId ? "main" : name}</a>
                  <span class="grow" />
                  <span class={`st ${mark}`}>
                    <Mark kind={mark} /> {word}
                  </span>
                  <p class="dim">{model(line)}</p>
                </div>
              );
            })}
          </div>
          <Facts both={both} one={ended(both.a)} two={ended(both.b)} />
          <p class="shared">
            <b>{both.shared === 0 ? "Nothing" : `#1–${both.shared}`} shared</b> · below is what each did after that, {count(rows.filter(([one, two]) => !same(one, two)).length, "difference")}
          </p>
          <ol class="pairs">
            {rows.map(([one, two], at) => (
              <li key={at} class={`pair ${same(one, two) ? "" : "differs"}`}>
                <Side id={both.a} step={one} other={two} entries={texts[0]} others={texts[1]} side="d" />
                <Side id={both.b} step={two} other={one} entries={texts[1]} others={texts[0]} side="a" />
              </li>
            ))}
          </ol>
        </section>
      )}
    </main>
  );
}
