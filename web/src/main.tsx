// The shell: where we are (the address), what theme, who may come in, and the keys that work everywhere.

import { render } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";

import { ask, type Pending, post, Problem, type Question } from "./api";
import { inFile, ownId } from "./file";
import { Compare } from "./compare";
import { Icon, Mark } from "./icons";
import { Inbox } from "./approval";
import { Keys, Palette } from "./palette";
import { SessionPage } from "./session";
import { Sessions } from "./sessions";
import "./style.css";

export type Place =
  | { page: "sessions" }
  | { page: "inbox" }
  | { page: "session"; id: string; seq?: number; tab?: string }
  | { page: "compare"; a: string; b?: string };

function readPlace(): Place {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (inFile) return { page: "session", id: ownId, seq: Number(parts[2]) || undefined, tab: parts[3] };
  if (parts[0] === "s" && parts[1])
    return { page: "session", id: parts[1], seq: Number(parts[2]) || undefined, tab: parts[3] };
  if (parts[0] === "compare" && parts[1]) return { page: "compare", a: parts[1], b: parts[2] || undefined };
  return { page: parts[0] === "inbox" ? "inbox" : "sessions" };
}

export const linkTo = (id: string, seq?: number) => `#/s/${encodeURIComponent(id)}${seq ? `/${seq}` : ""}`;

export interface Waiting {
  approvals: Pending[];
  questions: Question[];
  notes?: Record<string, { title?: string; seq?: number; words?: string }>;
}

const THEMES = ["system", "light", "dark"];

// A browser may refuse a file, or a visitor without cookies, a place to remember things.
function remembered(): string | null {
  try {
    return localStorage.getItem("turnlog-theme");
  } catch {
    return null;
  }
}

function remember(theme: string) {
  try {
    localStorage.setItem("turnlog-theme", theme);
  } catch {
    return;
  }
}

function useTheme(): [string, () => void] {
  const [theme, setTheme] = useState(remembered() ?? "system");
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    remember(theme);
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

function Token({ onIn }: { onIn: () => void }) {
  const [problem, setProblem] = useState("");
  const enter = async (event: Event) => {
    event.preventDefault();
    const token = new FormData(event.target as HTMLFormElement).get("token");
    try {
      await post("/login", { token });
      onIn();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <main class="state">
      <h1>This server asks for a token</h1>
      <p>It printed one at its start, at the end of its address. Open that address, or paste the token here.</p>
      <form onSubmit={enter}>
        <input name="token" type="password" aria-label="Token" autocomplete="off" autofocus />
        <button class="btn pri">Enter</button>
      </form>
      {problem && <p class="bad" role="alert">{problem}</p>}
    </main>
  );
}

function App() {
  const [where, setWhere] = useState(readPlace);
  const [theme, nextTheme] = useTheme();
  const [allowed, setAllowed] = useState<boolean | undefined>();
  const [online, setOnline] = useState(true);
  const [waiting, setWaiting] = useState<Waiting>({ approvals: [], questions: [] });
  const [over, setOver] = useState<"" | "palette" | "keys">("");

  const look = useCallback(async () => {
    try {
      setWaiting(await ask<Waiting>("/inbox"));
      setAllowed(true);
      setOnline(true);
    } catch (error) {
      if ((error as Problem).status === 401) setAllowed(false);
      else if ((error as Problem).status === 0) setOnline(false);
    }
  }, []);

  useEffect(() => {
    const moved = () => setWhere(readPlace());
    addEventListener("hashchange", moved);
    const token = /^#token=(.+)$/.exec(location.hash);
    if (token) {
      history.replaceState(null, "", location.pathname);
      post("/login", { token: decodeURIComponent(token[1]) }).then(look, () => setAllowed(false));
    } else look();
    if (inFile) return () => removeEventListener("hashchange", moved);
    const timer = setInterval(() => document.visibilityState === "visible" && look(), 4000);
    return () => {
      removeEventListener("hashchange", moved);
      clearInterval(timer);
    };
  }, [look]);

  useEffect(() => {
    let going = false;
    const press = (event: KeyboardEvent) => {
      const field = (event.target as HTMLElement).closest("input, textarea, select, [contenteditable]");
      if ((event.metaKey || event.ctrlKey) && event.key === "k") {
        event.preventDefault();
        setOver((now) => (now === "palette" ? "" : "palette"));
      } else if (event.key === "Escape") setOver("");
      else if (field || event.metaKey || event.ctrlKey || event.altKey) return;
      else if (going && !inFile && event.key === "s") location.hash = "#/";
      else if (going && !inFile && event.key === "i") location.hash = "#/inbox";
      else if (event.key === "?") setOver("keys");
      else if (event.key === "t") nextTheme();
      else if (event.key === "/") {
        event.preventDefault();
        setOver("palette");
      }
      going = !field && event.key === "g" && !going;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [theme]);

  if (allowed === false) return <Token onIn={look} />;
  const count = waiting.approvals.length + waiting.questions.length;
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="#/" aria-label={inFile ? "turnlog" : "turnlog, sessions"}>
          <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
            <path d="M2 4h12M2 8h8M2 12h12" />
            <path class="dot" d="M12.500 8h1.500" />
          </svg>
          <span>turnlog</span>
        </a>
        {!inFile && (
        <nav aria-label="Places">
          <a href="#/" aria-current={where.page !== "inbox" ? "page" : undefined}>
            Sessions
          </a>
          <a href="#/inbox" aria-current={where.page === "inbox" ? "page" : undefined}>
            Inbox {count > 0 && <span class="count">{count}</span>}
          </a>
        </nav>
        )}
        <span class="grow" />
        <button class="find" onClick={() => setOver("palette")} aria-label="Search or jump to">
          <Icon name="search" /> <span>{inFile ? "Search this session…" : "Search or jump to…"}</span> <kbd>⌘K</kbd>
        </button>
        <span class={`link ${online ? "" : "off"}`} role="status">
          <Mark kind={online ? "done" : "fail"} /> <span>{inFile ? "A file, to read" : online ? "Connected" : "Disconnected"}</span>
        </span>
        <button class="btn sq" onClick={() => setOver("keys")} aria-label="Keys">
          ?
        </button>
        <button class="btn sq" onClick={nextTheme} aria-label={`Theme: ${theme}`} title={`Theme: ${theme}`}>
          <Icon name="sun" />
        </button>
      </header>
      {!online && (
        <p class="banner" role="alert">
          The server cannot be reached. Everything here stays readable; it connects again by itself.
        </p>
      )}
      <div id="main" class="main">
        {allowed === undefined && online ? (
          <div class="skeleton" aria-label="Loading" />
        ) : where.page === "session" ? (
          <SessionPage key={where.id} id={where.id} seq={where.seq} tab={where.tab} online={online} onChange={look} />
        ) : where.page === "compare" ? (
          <Compare a={where.a} b={where.b} />
        ) : where.page === "inbox" ? (
          <section class="inbox full" aria-label="Inbox">
            <Inbox waiting={waiting} online={online} onChange={look} />
          </section>
        ) : (
          <Sessions waiting={waiting} online={online} onChange={look} />
        )}
      </div>
      {over === "palette" && <Palette onClose={() => setOver("")} />}
      {over === "keys" && <Keys onClose={() => setOver("")} />}
    </>
  );
}

render(<App />, document.getElementById("app")!);
