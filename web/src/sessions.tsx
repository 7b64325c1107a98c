// All sessions: search, filters, a row for each; beside them what waits for a person.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { ask, type Glance, type Info, Problem } from "./api";
import { Inbox } from "./approval";
import { age, day, money, statusOf } from "./format";
import { Icon, Mark } from "./icons";
import { linkTo, type Waiting } from "./main";

interface Hit {
  sessionId: string;
  seq?: number;
  text?: string;
}

interface Page {
  sessions: Info[];
  after?: string;
  hits?: Hit[];
}

const FILTERS: [string, string, string?][] = [
  ["", "All"],
  ["running", "Running"],
  ["awaiting_human", "Waiting"],
  ["failed", "Failed"],
  ["forks", "With branches"],
];
const OPEN = ["preparing", "calling_model", "running_tools", "running", "streaming", "retrying"];

export function MiniStrip({ glance }: { glance?: Glance }) {
  const buckets = glance?.buckets ?? [];
  const top = Math.max(1, ...buckets.map(([ms]) => Math.log1p(ms)));
  return (
    <svg class="mini" viewBox="0 0 130 18" width="130" height="18" aria-hidden="true">
      {buckets.map(([ms, worst], at) => {
        const height = 3 + (Math.log1p(ms) / top) * 13;
        return <rect key={at} class={worst} x={at * 5} y={17 - height} width="3" height={height} />;
      })}
    </svg>
  );
}

export function Sessions({ waiting, online, onChange }: { waiting: Waiting; online: boolean; onChange: () => void }) {
  const [words, setWords] = useState("");
  const [filter, setFilter] = useState("");
  const [page, setPage] = useState<Page | undefined>();
  const [counts, setCounts] = useState<Record<string, number>>({});
  const [glances, setGlances] = useState<Record<string, Glance>>({});
  const [problem, setProblem] = useState("");
  const [chosen, setChosen] = useState(0);
  const [days, setDays] = useState(0);
  const list = useRef<HTMLOListElement>(null);

  useEffect(() => {
    const stop = new AbortController();
    const load = async () => {
      const query = new URLSearchParams({ limit: "100" });
      if (words.trim()) query.set("q", words.trim());
      if (days) query.set("since", new Date(Date.now() - days * 86_400_000).toISOString());
      if (filter === "awaiting_human" || filter === "failed") query.set("status", filter);
      try {
        const found = await ask<Page>(`/sessions?${query}`, { signal: stop.signal });
        setPage(found);
        setProblem("");
        setCounts((await ask<{ counts: Record<string, number> }>("/about", { signal: stop.signal })).counts ?? {});
      } catch (error) {
        if ((error as Error).name !== "AbortError") setProblem((error as Problem).message);
      }
    };
    const timer = setTimeout(load, words ? 200 : 0);
    const again = setInterval(() => !words && document.visibilityState === "visible" && load(), 5000);
    return () => {
      stop.abort();
      clearTimeout(timer);
      clearInterval(again);
    };
  }, [words, filter, days]);

  const forks = useMemo(() => {
    const found: Record<string, number> = {};
    for (const info of page?.sessions ?? [])
      if (info.parentSessionId) found[info.parentSessionId] = (found[info.parentSessionId] ?? 0) + 1;
    return found;
  }, [page]);

  const shown = (page?.sessions ?? []).filter((info) => {
    if (filter === "running") return statusOf(info.status)[0] === "run";
    if (filter === "forks") return forks[info.sessionId] > 0;
    return true;
  });

  useEffect(() => {
    const missing = shown.map((info) => info.sessionId).filter((id) => !id.includes(","));
    if (missing.length === 0) return;
    const stop = new AbortController();
    (async () => {
      for (let at = 0; at < missing.length; at += 10) {
        const query = new URLSearchParams({ sessions: missing.slice(at, at + 10).join(",") });
        const found = await ask<Record<string, Glance>>(`/glances?${query}`, { signal: stop.signal });
        setGlances((now) => ({ ...now, ...found }));
      }
    })().catch(() => undefined);
    return () => stop.abort();
  }, [page, filter]);

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if ((event.target as HTMLElement).closest("input, textarea, dialog") || event.metaKey || event.ctrlKey) return;
      if (event.key === "j" || event.key === "k") {
        const next = Math.max(0, Math.min(shown.length - 1, chosen + (event.key === "j" ? 1 : -1)));
        setChosen(next);
        list.current?.querySelectorAll<HTMLElement>("a.srow")[next]?.focus();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [chosen, shown.length]);

  const hits = new Map((page?.hits ?? []).map((hit) => [hit.sessionId, hit]));
  const number = (key: string): number | undefined => {
    if (key === "") return Object.values(counts).reduce((sum, each) => sum + each, 0);
    if (key === "running") return OPEN.reduce((sum, each) => sum + (counts[each] ?? 0), 0);
    if (key === "forks") return Object.keys(forks).length;
    return counts[key] ?? 0;
  };
  let last = "";
  return (
    <div class="page">
      <main class="list" aria-label="Sessions">
        <div class="lh">
          <label class="search">
            <Icon name="search" />
            <input
              type="search"
              placeholder="Search what was said, done or failed in all sessions"
              value={words}
              onInput={(event) => setWords(event.currentTarget.value)}
              aria-label="Search all sessions"
            />
          </label>
          <div class="filters" role="group" aria-label="Status">
            {FILTERS.map(([key, label]) => (
              <button key={key} class="fl" aria-pressed={filter === key} onClick={() => setFilter(key)}>
                {label} <span>{number(key)}</span>
              </button>
            ))}
            <span class="grow" />
            <label class="fl since">
              Since{" "}
              <select value={days} onChange={(event) => setDays(Number(event.currentTarget.value))}>
                <option value={0}>any time</option>
                <option value={1}>yesterday</option>
                <option value={7}>a week ago</option>
                <option value={30}>a month ago</option>
              </select>
            </label>
          </div>
        </div>
        {problem && (
          <p class="state bad" role="alert">
            {problem}
          </p>
        )}
        {page === undefined && !problem && <div class="skeleton" aria-label="Loading" />}
        {page !== undefined && shown.length === 0 && (
          <div class="state">
            <h2>{words ? "Nothing found" : "No session yet"}</h2>
            <p>
              {words ? (
                `No session holds “${words}”.`
              ) : filter || days ? (
                "No session fits these filters."
              ) : (
                <>
                  Start one: <code>turnlog chat</code>, or <code>Agent(…).run(…)</code> with this store.
                </>
              )}
            </p>
          </div>
        )}
        {shown.length > 0 && (
          <>
            <div class="colhd" aria-hidden="true">
              <span>Status</span>
              <span>Session</span>
              <span class="h-n">Run strip</span>
              <span class="num">Entries</span>
              <span class="num">Cost</span>
              <span class="num">Updated</span>
            </div>
            <ol ref={list}>
              {shown.map((info, at) => {
                const today = day(info.updatedAt);
                const head = today !== last ? <h2 class="day">{today}</h2> : null;
                last = today;
                const [mark, word] = statusOf(info.status);
                const glance = glances[info.sessionId];
                const hit = hits.get(info.sessionId);
                const below = hit?.text ?? [glance?.last, glance?.model?.split(":").pop()].filter(Boolean).join(" · ");
                return (
                  <li key={info.sessionId}>
                    {head}
                    <a class="srow" href={linkTo(info.sessionId, hit?.seq)} onFocus={() => setChosen(at)}>
                      <span class={`st ${mark}`}>
                        <Mark kind={mark} /> {word}
                      </span>
                      <span class="main-c">
                        <b dir="auto">{info.title ?? info.about ?? info.sessionId}</b>
                        {forks[info.sessionId] > 0 && (
                          <span class="chip fork">
                            <Icon name="fork" /> {forks[info.sessionId]}
                          </span>
                        )}
                        {info.parentSessionId && (
                          <span class="chip fork" title={`A branch of ${info.parentSessionId}`}>
                            <Icon name="fork" /> branch
                          </span>
                        )}
                        <small dir="auto">{[info.title || info.about ? info.sessionId : "", below].filter(Boolean).join(" · ") || " "}</small>
                      </span>
                      <span class="h-n">
                        <MiniStrip glance={glance} />
                      </span>
                      <span class="num">{info.entries}</span>
                      <span class="num cst">{money(glance?.cost)}</span>
                      <span class="num upd">{age(info.updatedAt)}</span>
                    </a>
                  </li>
                );
              })}
            </ol>
          </>
        )}
      </main>
      <aside class="inbox" aria-label="Waiting for you">
        <Inbox waiting={waiting} online={online} onChange={onChange} />
      </aside>
    </div>
  );
}
