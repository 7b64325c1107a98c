// One session: its header, strip and gauge, the outline, the conversation and the detail, live while it runs.

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { ask, type Entry, type Pending, place, post, Problem, type Saw, type SessionView, type Step, type Timeline, upload } from "./api";
import { Answer } from "./approval";
import { toCompare } from "./compare";
import { Conversation } from "./conversation";
import { Detail, TABS } from "./detail";
import { inFile } from "./file";
import { count, duration, money, nameOf, statusOf } from "./format";
import { Icon, Mark, toolIcon } from "./icons";
import { linkTo } from "./main";
import { Gauge, Strip, type Widths } from "./strip";
import { WhatIf } from "./whatif";

const PAGE = 200;
const STRIDE = 1_000_000;
const WIDTHS: Widths[] = ["steps", "time", "cost"];

function merge(old: Step[], fresh: Step[]): Step[] {
  if (fresh.length === 0) return old;
  const first = fresh[0].seq;
  const kept = old.filter((step) => step.seq < first);
  const again = new Map(fresh.map((step) => [step.seq, step]));
  const between = old.filter((step) => step.seq >= first).map((step) => again.get(step.seq) ?? step);
  const known = new Set(between.map((step) => step.seq));
  return [...kept, ...between, ...fresh.filter((step) => !known.has(step.seq))].sort((a, b) => a.seq - b.seq);
}

interface Attached {
  name: string;
  size: number;
  blob?: string;
}

function Outline({ view, selected, onSelect, open }: { view: SessionView; selected?: number; onSelect: (seq: number) => void; open: boolean }) {
  const { timeline } = view;
  const shown = timeline.steps.length > 600 ? timeline.steps.filter((step) => step.kind === "input" || step.kind === "fold" || step.status === "failed" || step.status === "waiting") : timeline.steps;
  const last = shown.slice(-400);
  return (
    <nav class={`outline ${open ? "open" : ""}`} aria-label="Outline">
      <h2>Outline</h2>
      {timeline.runs.slice(-200).map((run) => {
        const inside = last.filter((step) => step.run === run.number && ["input", "tool", "fold"].includes(step.kind));
        const mark = statusOf(run.status === "running" || run.status === undefined ? view.state.status : run.status)[0];
        return (
          <div key={run.runId}>
            <h3>
              Run {run.number} <span class="grow" /> <Mark kind={mark} />
            </h3>
            {inside.map((step) => (
              <button key={step.seq} class={`ol ${step.kind}`} aria-current={selected === step.seq ? "true" : undefined} onClick={() => onSelect(step.seq)}>
                <Icon name={step.kind === "input" ? "user" : step.kind === "fold" ? "fold" : toolIcon(step.tool)} />
                <span dir="auto">{step.kind === "fold" ? "fold" : step.title || step.tool}</span>
                {step.status === "failed" && <Mark kind="fail" />}
                {step.status === "waiting" && <Mark kind="wait" />}
              </button>
            ))}
          </div>
        );
      })}
      {(view.branches.length > 0 || view.info.parentSessionId) && (
        <div class="tree">
          <h2>
            Branches <span class="grow" />
            {view.branches.length > 0 && !inFile && (
              <a class="btn" href={toCompare(view.info.sessionId, view.branches[0].sessionId)}>
                Compare
              </a>
            )}
          </h2>
          {view.info.parentSessionId && (
            <a class="ol" href={inFile ? undefined : linkTo(view.info.parentSessionId)}>
              <Mark kind="ink" /> <span>{view.info.parentSessionId}</span>
            </a>
          )}
          <span class="ol here">
            <Mark kind="ink" /> <b>{view.info.parentSessionId ? view.info.sessionId : "main"}</b>
          </span>
          {view.branches.map((branch) => (
            <a key={branch.sessionId} class="ol twig" href={inFile ? undefined : linkTo(branch.sessionId)}>
              <Mark kind={branch.status === "failed" ? "fail" : "fork"} /> <span>{branch.title && branch.title !== view.info.title ? branch.title : branch.sessionId}</span>
              {branch.forkedAt && <small>#{branch.forkedAt}</small>}
            </a>
          ))}
        </div>
      )}
    </nav>
  );
}

export function SessionPage(props: { id: string; seq?: number; tab?: string; online: boolean; onChange: () => void }) {
  const { id } = props;
  const [view, setView] = useState<SessionView | undefined>();
  const [problem, setProblem] = useState<Problem | undefined>();
  const [entries, setEntries] = useState(new Map<number, Entry>());
  const [selected, setSelected] = useState<number | undefined>(props.seq);
  const [tab, setTab] = useState(props.tab ?? "saw");
  const [all, setAll] = useState(false);
  const [widths, setWidths] = useState<Widths>("steps");
  const [shown, setShown] = useState<[number, number]>([0, 0]);
  const [follow, setFollow] = useState(props.seq === undefined);
  const [behind, setBehind] = useState(false);
  const [live, setLive] = useState("");
  const [progress, setProgress] = useState(new Map<string, string>());
  const [opened, setOpened] = useState(new Set<number>());
  const [saw, setSaw] = useState<Saw | undefined>();
  const [sheet, setSheet] = useState(false);
  const [outline, setOutline] = useState(false);
  const asked = useRef(new Set<number>());
  const words = useRef<HTMLInputElement>(null);
  const [trouble, setTrouble] = useState("");
  const [asking, setAsking] = useState(false);
  const [again, setAgain] = useState(0);
  const [wiped, setWiped] = useState(0);
  const [files, setFiles] = useState<Attached[]>([]);
  const [over, setOver] = useState(false);
  const going = useRef(false);

  const load = useCallback(async () => {
    try {
      setView(await ask<SessionView>(place(id)));
      setProblem(undefined);
    } catch (error) {
      if ((error as Problem).status) setProblem(error as Problem);
    }
  }, [id]);
  const away = problem !== undefined && problem.status >= 500;
  useEffect(() => {
    // A store that went away may come back: what is shown stays, and it is asked again.
    if (!away) return;
    const timer = setInterval(load, 2000);
    return () => {
      clearInterval(timer);
      setAgain((count) => count + 1);
    };
  }, [away]);

  useEffect(() => {
    load();
  }, [load]);

  useEffect(() => {
    // A link, or a search, leads to another step of the same session.
    if (props.seq === undefined || props.seq === selected) return;
    setFollow(false);
    setSelected(props.seq);
  }, [props.seq]);

  // ── what is on screen ──

  const ensure = useCallback(
    async (first: number, last: number) => {
      for (let page = Math.floor(Math.max(0, first - 1) / PAGE); page <= Math.floor((last - 1) / PAGE); page += 1) {
        if (asked.current.has(page)) continue;
        asked.current.add(page);
        try {
          const found = await ask<{ entries: Entry[] }>(`${place(id)}/entries?after=${page * PAGE}&upto=${(page + 1) * PAGE}&limit=${PAGE}`);
          setEntries((now) => new Map([...now, ...found.entries.map((entry) => [entry.seq, entry] as [number, Entry])]));
        } catch {
          asked.current.delete(page);
        }
      }
    },
    [id],
  );

  const steps = view?.timeline.steps ?? [];
  const tail = view?.timeline.entries ?? 0;
  useEffect(() => {
    if (!view) return;
    const from = steps.find((step) => step.seq >= shown[0]);
    const upto = steps.filter((step) => step.seq <= shown[1]).at(-1);
    ensure(Math.max(1, (from?.seq ?? tail) - 20), Math.min(tail, Math.max(upto?.end ?? tail, shown[1]) + 20));
  }, [shown[0], shown[1], tail > 0, wiped]);

  // ── live ──

  const due = useRef<ReturnType<typeof setTimeout> | undefined>();
  const since = useRef(0);
  useEffect(() => {
    if (!view) return;
    since.current = Math.max(since.current, view.timeline.entries);
  }, [view]);
  useEffect(() => {
    if (tail === 0 || inFile) return;
    const source = new EventSource(`api${place(id)}/events?view=entries&after=${since.current * STRIDE}`);
    let held = "";
    let frame = 0;
    const show = () => {
      frame = 0;
      setLive(held);
    };
    const refresh = async () => {
      due.current = undefined;
      setView((now) => {
        if (!now) return now;
        const open = now.timeline.steps.filter((step) => step.status === "running" || step.status === "waiting").map((step) => step.seq);
        const after = Math.min(now.timeline.entries, ...open) - 1;
        Promise.all([
          ask<Timeline>(`${place(id)}/timeline?after=${Math.max(0, after)}`),
          ask<{ status: string; undriven?: boolean; pending: Pending[]; questions: any[] }>(`${place(id)}/state`),
        ]).then(([line, state]) => {
          setView((last) =>
            last && {
              ...last,
              pending: state.pending,
              questions: state.questions,
              undriven: state.undriven,
              state: { ...last.state, status: state.status },
              timeline: { ...line, steps: merge(last.timeline.steps, line.steps) },
            },
          );
          setBehind(true);
        }, () => undefined);
        return now;
      });
      props.onChange();
    };
    source.addEventListener("entry", (event) => {
      const entry: Entry = JSON.parse((event as MessageEvent).data);
      since.current = Math.max(since.current, entry.seq);
      if (entry.kind === "redaction" || entry.kind === "purge") {
        asked.current.clear();
        setEntries(new Map());
        setWiped((count) => count + 1);
        load();
        return;
      }
      setEntries((now) => new Map(now).set(entry.seq, entry));
      if (entry.kind === "model_output" || entry.kind === "model_call_failed" || entry.kind === "model_call_started") {
        held = "";
        show();
      }
      due.current ??= setTimeout(refresh, 60);
    });
    source.addEventListener("model_delta", (event) => {
      const delta = JSON.parse((event as MessageEvent).data).payload.delta;
      if (delta.kind !== "text") return;
      held += delta.payload.textDelta;
      frame ||= requestAnimationFrame(show);
    });
    source.addEventListener("tool_progress", (event) => {
      const { toolCallId, text } = JSON.parse((event as MessageEvent).data).payload;
      if (text) setProgress((now) => new Map(now).set(toolCallId, ((now.get(toolCallId) ?? "") + text).slice(-4000)));
    });
    source.addEventListener("status", () => (due.current ??= setTimeout(refresh, 60)));
    source.addEventListener("gone", () => {
      source.close();
      load();
    });
    return () => {
      source.close();
      cancelAnimationFrame(frame);
      clearTimeout(due.current);
      due.current = undefined;
    };
  }, [id, tail > 0, again]);

  // ── the selected step ──

  const step = steps.find((each) => each.seq === selected) ?? steps.find((each) => selected !== undefined && each.entries.includes(selected));
  const at = step ? steps.indexOf(step) : -1;
  const call = useMemo(() => {
    if (!step) return steps.filter((each) => each.call).at(-1)?.call;
    if (step.call) return step.call;
    const before = steps.slice(0, at + 1).filter((each) => each.call).at(-1);
    return before?.call ?? steps.find((each) => each.call)?.call;
  }, [step?.seq, steps.length]);
  useEffect(() => {
    if (!call) return;
    const stop = new AbortController();
    ask<Saw>(`${place(id)}/context/${call}`, { signal: stop.signal }).then(setSaw, () => undefined);
    return () => stop.abort();
  }, [id, call, wiped]);

  const select = useCallback(
    (seq: number, open = true) => {
      setFollow(false);
      setSelected(seq);
      if (open) setSheet(true);
      history.replaceState(null, "", linkTo(id, seq) + (tab !== "saw" ? `/${tab}` : ""));
    },
    [id, tab],
  );
  const move = useCallback(
    (by: number, fits: (step: Step) => boolean = () => true) => {
      let next = at < 0 ? (by > 0 ? -1 : steps.length) : at;
      do next += by;
      while (steps[next] && !fits(steps[next]));
      if (steps[next]) select(steps[next].seq, false);
    },
    [at, steps, select],
  );

  const act = async (what: string, body?: object) => {
    setTrouble("");
    try {
      await post(`${place(id)}/${what}`, body);
      load();
      return true;
    } catch (error) {
      setTrouble((error as Error).message);
      return false;
    }
  };
  const status = view?.state.status ?? "idle";
  const open = !["idle", "completed", "failed", "aborted", "awaiting_human", "paused"].includes(status);
  const running = open && !view?.undriven;
  const say = async (event: Event) => {
    event.preventDefault();
    const text = words.current!.value.trim();
    if ((!text && files.length === 0) || files.some((file) => !file.blob)) return;
    const said = { text, files: files.map(({ blob, name }) => ({ blob, name })) };
    if (!(await act(running || status === "awaiting_human" ? "send" : "runs", said))) return;
    words.current!.value = "";
    setFiles([]);
    setFollow(true);
  };
  const attach = async (picked: Iterable<File>) => {
    setTrouble("");
    for (const file of picked) {
      const held: Attached = { name: file.name, size: file.size };
      setFiles((now) => [...now, held]);
      try {
        const { name } = await upload(file);
        setFiles((now) => now.map((each) => (each === held ? { ...held, blob: name } : each)));
      } catch (error) {
        setFiles((now) => now.filter((each) => each !== held));
        setTrouble((error as Error).message);
      }
    }
  };

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target.closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) {
        if (event.key === "Escape") target.blur();
        return;
      }
      const wrong = (each: Step) => each.status === "failed" || each.status === "waiting" || each.status === "unknown" || (each.attempts ?? 1) > 1;
      const keys: Record<string, () => void> = {
        j: () => move(1),
        k: () => move(-1),
        ArrowDown: () => move(1),
        ArrowUp: () => move(-1),
        J: () => move(1, (each) => each.kind === "input"),
        K: () => move(-1, (each) => each.kind === "input"),
        n: () => move(1, wrong),
        N: () => move(-1, wrong),
        G: () => steps.length && select(steps[steps.length - 1].seq, false),
        "]": () => setTab(TABS[(TABS.indexOf(tab) + 1) % TABS.length]),
        "[": () => setTab(TABS[(TABS.indexOf(tab) + TABS.length - 1) % TABS.length]),
        ".": () => setAll(!all),
        e: () => step && toggle(step.seq),
        m: () => setWidths(WIDTHS[(WIDTHS.indexOf(widths) + 1) % 3]),
        o: () => setOutline(!outline),
        b: () => !inFile && (location.hash = toCompare(id)),
        a: () => document.querySelector<HTMLElement>(".scroll .approve")?.focus(),
        d: () => document.querySelector<HTMLElement>(".scroll .deny")?.click(),
        i: () => words.current?.focus(),
        w: () => document.querySelector<HTMLElement>(".whatif")?.click(),
        f: () => setFollow(true),
        Enter: () => setSheet(true),
        Escape: () => (sheet ? setSheet(false) : setOutline(false)),
        " ": () => running && act("pause"),
      };
      if (going.current && event.key === "g") {
        if (steps.length) select(steps[0].seq, false);
        going.current = false;
        return;
      }
      going.current = event.key === "g";
      if (/^[1-5]$/.test(event.key)) setTab(TABS[Number(event.key) - 1]);
      else if (keys[event.key] && !(event.key === "Enter" && target.closest("button, a"))) {
        if (!(event.key === " " && target.closest("button, a"))) {
          event.preventDefault();
          keys[event.key]();
        }
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  useEffect(() => {
    // Without a place in the address the newest step is looked at, and the end is followed.
    if (selected !== undefined || steps.length === 0) return;
    const newest = steps.filter((each) => each.status === "waiting" || each.kind === "model").at(-1);
    if (newest) setSelected(newest.seq);
  }, [steps.length > 0]);

  const toggle = (seq: number) =>
    setOpened((now) => {
      const next = new Set(now);
      if (!next.delete(seq)) next.add(seq);
      return next;
    });

  const branches = useMemo(
    () => new Map((view?.branches ?? []).filter((branch) => branch.forkedAt).map((branch) => [branch.forkedAt!, branch.sessionId])),
    [view?.branches],
  );
  const pending = useMemo(() => new Map((view?.pending ?? []).map((each) => [each.requested.toolCallId, each])), [view?.pending]);

  if (problem && !(away && view))
    return (
      <main class="state">
        <h1>{problem.status === 404 ? "This session is not here" : problem.code}</h1>
        <p>{problem.message}</p>
        <a class="btn" href="#/">
          All sessions
        </a>
      </main>
    );
  if (!view) return <div class="skeleton tall" aria-label="Loading" />;
  const { timeline, info } = view;
  const [mark, word] = open && view.undriven ? ["stop", "Nobody drives it"] : statusOf(status);
  const usage = timeline.usage;
  const calls = timeline.runs.reduce((sum, run) => sum + (run.calls ?? 0), 0);
  const cached = usage?.cachedInputTokens && usage.inputTokens ? `${Math.round((usage.cachedInputTokens / usage.inputTokens) * 100)} %` : undefined;
  const facts: [string | undefined, string][] = [
    [String(timeline.entries), "entries"],
    [String(calls), calls === 1 ? "call" : "calls"],
    [money(usage?.cost), ""],
    [cached, "cached"],
    [duration(timeline.activeMs), "active"],
  ];
  return (
    <div class="session">
      {problem && (
        <p class="banner" role="alert">
          {problem.code}: {problem.message} What you see stays readable; it is asked again.
        </p>
      )}
      <div class="shead">
        <h1 dir="auto">{timeline.title ?? info.about ?? steps.find((each) => each.kind === "input")?.title ?? info.sessionId}</h1>
        <span class="lbl">
          <Icon name="fork" /> {info.parentSessionId ? "branch" : "main"} · {info.sessionId}
          {view.branches.length > 0 && ` · ${count(view.branches.length, "what-if")}`}
        </span>
        <span class={`st ${mark}`} role="status">
          <Mark kind={mark} /> {word}
        </span>
        <span class="grow" />
        <span class="facts">
          {facts
            .filter(([value]) => value)
            .map(([value, name]) => (
              <span key={name}>
                <b>{value}</b> {name}
              </span>
            ))}
        </span>
        {!inFile && (
          <a class="btn bare" href={`api${place(id)}/export?format=html`} download>
            <Icon name="export" /> <span>Export</span>
          </a>
        )}
      </div>
      <div class="strip">
        <Strip
          timeline={timeline}
          branches={branches}
          selected={step?.seq}
          shown={shown}
          widths={widths}
          onWidths={setWidths}
          onSelect={(seq) => select(seq, false)}
          foldAt={saw?.view.foldAt}
          status={status}
        />
        <Gauge saw={saw} step={steps.find((each) => each.call === saw?.view.call)} />
      </div>
      <div class="cols">
        <Outline view={view} selected={step?.seq} onSelect={(seq) => select(seq, false)} open={outline} />
        <main class="mid">
          <Conversation
            steps={steps}
            runs={timeline.runs}
            entries={entries}
            selected={step?.seq}
            opened={opened}
            live={live}
            progress={progress}
            branches={branches}
            pending={pending}
            online={props.online}
            follow={follow}
            onFollow={(now) => {
              setFollow(now);
              if (now) setBehind(false);
            }}
            onSelect={(seq) => select(seq)}
            onOpen={toggle}
            onShown={(first, last) => setShown([first, last])}
            onChange={() => {
              load();
              props.onChange();
            }}
          />
          {!follow && behind && (
            <button class="follow" onClick={() => setFollow(true)}>
              Something new ↓
            </button>
          )}
          {view.questions.length > 0 && (
            <div class="questions">
              {view.questions.map((question) => (
                <Answer key={question.asked.toolCallId} question={question} online={props.online} onChange={load} />
              ))}
            </div>
          )}
          {trouble && (
            <p class="bad pad" role="alert">
              {trouble}
            </p>
          )}
          {!inFile && (
          <form
            class={`comp ${over ? "over" : ""}`}
            onSubmit={say}
            onDragOver={(event) => {
              event.preventDefault();
              setOver(true);
            }}
            onDragLeave={() => setOver(false)}
            onDrop={(event) => {
              event.preventDefault();
              setOver(false);
              attach(event.dataTransfer?.files ?? []);
            }}
          >
            {files.length > 0 && (
              <ul class="attached" aria-label="Files that go with the message">
                {files.map((file, place) => (
                  <li key={place} class="chip">
                    <Icon name="file" /> {file.name} {file.blob ? "" : "…"}
                    <button type="button" aria-label={`Leave out ${file.name}`} onClick={() => setFiles(files.filter((each) => each !== file))}>
                      <Icon name="close" />
                    </button>
                  </li>
                ))}
              </ul>
            )}
            <input
              ref={words}
              onPaste={(event) => {
                const pasted = [...(event.clipboardData?.files ?? [])];
                if (pasted.length) attach(pasted);
              }}
              aria-label="Write to the agent"
              disabled={!props.online || (!view.canRun && !running && status !== "awaiting_human")}
              placeholder={
                running
                  ? "Say something; it is read before the next call"
                  : status === "awaiting_human"
                    ? "Say something; it is read as soon as the run continues"
                    : view.canRun
                      ? "Say something; it starts a new run"
                      : open
                        ? `The run is open and nobody drives it: turnlog resume ${id}`
                        : "This server only shows sessions; start it with --agent to run them"
              }
            />
            <label class={`btn sq bare clip ${!props.online || (!view.canRun && !running) ? "off" : ""}`} title="Send files along; they can be dropped here too">
              <Icon name="clip" />
              <input
                type="file"
                multiple
                aria-label="Send files along"
                disabled={!props.online || (!view.canRun && !running)}
                onChange={(event) => {
                  attach([...(event.currentTarget.files ?? [])]);
                  event.currentTarget.value = "";
                }}
              />
            </label>
            <button class="btn sq" aria-label="Send" disabled={!props.online || (!view.canRun && !running)}>
              <Icon name="send" />
            </button>
            {running && (
              <>
                <button type="button" class="btn" onClick={() => act("pause")}>
                  <Icon name="pause" /> Pause
                </button>
                <button type="button" class="btn danger" onClick={() => act("abort", {})}>
                  <Icon name="stop" /> Abort
                </button>
              </>
            )}
            {(status === "paused" || (open && view.undriven)) && view.canRun && (
              <button type="button" class="btn" onClick={() => act("resume")}>
                Resume
              </button>
            )}
          </form>
          )}
        </main>
        <Detail
          id={id}
          step={step}
          run={step ? timeline.runs[(step.run ?? 0) - 1] : undefined}
          saw={saw}
          asked={steps.find((each) => each.call === saw?.view.call)}
          entries={entries}
          tab={tab}
          all={all}
          open={sheet}
          onTab={(each) => setTab(each)}
          onAll={setAll}
          onMove={(by) => move(by)}
          onClose={() => setSheet(false)}
          onWhatIf={view.canRun ? () => setAsking(true) : undefined}
          onFork={async () => {
            try {
              const made = await post<{ sessionId: string }>(`${place(id)}/fork`, { at: step!.end });
              location.hash = linkTo(made.sessionId);
            } catch (error) {
              setTrouble((error as Error).message);
            }
          }}
        />
      </div>
      {asking && step && (
        <WhatIf
          id={id}
          step={step}
          steps={steps}
          prompt={saw?.view.systemPrompt}
          model={timeline.runs[(step.run ?? 0) - 1]?.model}
          onClose={() => setAsking(false)}
          onDone={(branch) => {
            setAsking(false);
            location.hash = toCompare(id, branch);
          }}
        />
      )}
      <div class="sr" aria-live="polite">
        {step ? `Entry ${step.seq}, ${nameOf(step)}, ${step.status}` : ""}
      </div>
    </div>
  );
}
