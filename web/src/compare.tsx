// Two branches side by side: what they share, and how each continues.

import { useEffect, useState } from "preact/hooks";

import { ask, type Step, type Timeline } from "./api";
import { duration, money, nameOf, statusOf, tokens } from "./format";
import { Icon, Mark } from "./icons";
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

const same = (a?: Step, b?: Step) => a && b && a.kind === b.kind && a.title === b.title && a.detail === b.detail && a.status === b.status;

function align(a: Step[], b: Step[]): [Step | undefined, Step | undefined][] {
  // The longest common run of steps that say the same stays beside each other.
  const far = Math.min(400, Math.max(a.length, b.length));
  const left = a.slice(0, far);
  const right = b.slice(0, far);
  const best = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i -= 1)
    for (let j = right.length - 1; j >= 0; j -= 1)
      best[i][j] = same(left[i], right[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const rows: [Step | undefined, Step | undefined][] = [];
  let i = 0;
  let j = 0;
  let only: [Step[], Step[]] = [[], []];
  const flush = () => {
    for (let at = 0; at < Math.max(only[0].length, only[1].length); at += 1) rows.push([only[0][at], only[1][at]]);
    only = [[], []];
  };
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && same(left[i], right[j])) {
      flush();
      rows.push([left[i++], right[j++]]);
    } else if (j >= right.length || (i < left.length && best[i + 1][j] >= best[i][j + 1])) only[0].push(left[i++]);
    else only[1].push(right[j++]);
  }
  flush();
  return rows;
}

export function Compare({ a, b }: { a: string; b: string }) {
  const [both, setBoth] = useState<Compared | undefined>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = () => ask<Compared>(`/compare?${new URLSearchParams({ a, b })}`).then(setBoth, (error) => setProblem(error.message));
    load();
    // A branch that was just begun is still running.
    const timer = setInterval(() => document.visibilityState === "visible" && load(), 1500);
    return () => clearInterval(timer);
  }, [a, b]);
  if (problem) return <p class="state bad">{problem}</p>;
  if (!both) return <div class="skeleton" aria-label="Loading" />;
  const rows = align(both.stepsA, both.stepsB);
  const facts: [string, (line: Timeline) => string][] = [
    ["Outcome", (line) => statusOf(line.runs.length ? (line.runs.at(-1)!.status ?? "running") : "idle")[1]],
    ["Model calls", (line) => String(line.runs.reduce((sum, run) => sum + (run.calls ?? 0), 0))],
    ["Input", (line) => tokens(line.usage?.inputTokens ?? 0)],
    ["Output", (line) => tokens(line.usage?.outputTokens ?? 0)],
    ["Cost", (line) => money(line.usage?.cost) || "–"],
    ["Active", (line) => duration(line.activeMs)],
  ];
  return (
    <main class="bpage" aria-label="Comparison">
      <h1>
        <Icon name="fork" /> {both.timelineA.title ?? "Two branches"}
      </h1>
      <p class="dim">They share the first {both.shared} entries. Below is what each did after that.</p>
      <table class="facts-t">
        <thead>
          <tr>
            <td />
            <th>
              <a href={linkTo(both.a)}>{both.a}</a>
            </th>
            <th>
              <a href={linkTo(both.b)}>{both.b}</a>
            </th>
          </tr>
        </thead>
        <tbody>
          {facts.map(([name, tell]) => (
            <tr key={name} class={tell(both.timelineA) !== tell(both.timelineB) ? "differs" : ""}>
              <th>{name}</th>
              <td>{tell(both.timelineA)}</td>
              <td>{tell(both.timelineB)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <ol class="pairs">
        {rows.map(([one, two], at) => (
          <li key={at} class={`pair ${same(one, two) ? "" : "differs"}`}>
            {[one, two].map((step, side) => (
              <div key={side}>
                {step && (
                  <a href={linkTo(side ? both.b : both.a, step.seq)}>
                    <span class="g">{step.seq}</span> <Mark kind={step.kind === "model" ? "run" : step.status === "failed" ? "fail" : "done"} />{" "}
                    <b>{nameOf(step)}</b> <span dir="auto">{step.title}</span>
                    {step.error && <em class="bad"> {step.error}</em>}
                  </a>
                )}
              </div>
            ))}
          </li>
        ))}
      </ol>
    </main>
  );
}
