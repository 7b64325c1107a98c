// Over all: jump to a session, and the list of keys.

import { useEffect, useRef, useState } from "preact/hooks";

import { ask, type Info } from "./api";
import { statusOf } from "./format";
import { Mark } from "./icons";
import { linkTo } from "./main";

function Over({ label, onClose, children }: { label: string; onClose: () => void; children: preact.ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog
      ref={dialog}
      class="dlg"
      aria-label={label}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      {children}
    </dialog>
  );
}

export function Palette({ onClose }: { onClose: () => void }) {
  const [words, setWords] = useState("");
  const [found, setFound] = useState<(Info & { seq?: number })[]>([]);
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      const query = new URLSearchParams({ limit: "12" });
      if (words.trim()) query.set("q", words.trim());
      const page = await ask<{ sessions: Info[]; hits?: { sessionId: string; seq?: number }[] }>(`/sessions?${query}`, {
        signal: stop.signal,
      }).catch(() => undefined);
      if (!page) return;
      const places = new Map((page.hits ?? []).map((hit) => [hit.sessionId, hit.seq]));
      setFound(page.sessions.slice(0, 12).map((info) => ({ ...info, seq: places.get(info.sessionId) })));
      setChosen(0);
    }, 120);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [words]);
  const open = (info: Info & { seq?: number }) => {
    location.hash = linkTo(info.sessionId, info.seq);
    onClose();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setChosen((now) => Math.max(0, Math.min(found.length - 1, now + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Enter" && found[chosen]) open(found[chosen]);
  };
  return (
    <Over label="Search or jump to" onClose={onClose}>
      <input
        class="pin"
        autofocus
        placeholder="Search all sessions"
        aria-label="Search all sessions"
        value={words}
        onInput={(event) => setWords(event.currentTarget.value)}
        onKeyDown={press}
      />
      <ul class="pal" role="listbox" aria-label="Sessions">
        {found.map((info, at) => (
          <li key={info.sessionId} role="option" aria-selected={at === chosen} onClick={() => open(info)}>
            <Mark kind={statusOf(info.status)[0]} /> <span dir="auto">{info.title ?? info.about ?? info.sessionId}</span>
            {info.seq !== undefined && <small>#{info.seq}</small>}
          </li>
        ))}
        {found.length === 0 && <li class="dim">Nothing found</li>}
      </ul>
    </Over>
  );
}

const KEYS: [string, string][] = [
  ["j k", "next, previous step"],
  ["J K", "next, previous turn"],
  ["n N", "next, previous problem"],
  ["g g, G", "first, last step"],
  ["1–5, [ ]", "tabs of the detail"],
  [".", "what is new, or everything"],
  ["e", "open or close the selected step"],
  ["m", "widths of the strip: steps, time, cost"],
  ["o", "outline"],
  ["w", "what if"],
  ["b", "branches"],
  ["a", "focus Approve"],
  ["d", "deny, with a note"],
  ["i", "write"],
  ["Space", "pause the run"],
  ["f", "follow the end"],
  ["/ or ⌘K", "search and jump"],
  ["g s, g i", "sessions, inbox"],
  ["t", "theme"],
  ["Esc", "close"],
];

export function Keys({ onClose }: { onClose: () => void }) {
  return (
    <Over label="Keys" onClose={onClose}>
      <h2>Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p class="dim">No single key decides: <kbd>a</kbd> only moves to Approve.</p>
      <button class="btn" onClick={onClose}>
        Close
      </button>
    </Over>
  );
}
