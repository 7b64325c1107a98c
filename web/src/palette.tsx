// Over all: jump to a session, and the list of keys.

import { useEffect, useRef, useState } from "preact/hooks";

import { ask, type Info } from "./api";
import { inFile } from "./file";
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
  const [found, setFound] = useState<(Info & { seq?: number; text?: string })[]>([]);
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      const query = new URLSearchParams({ limit: "12" });
      if (words.trim()) query.set("q", words.trim());
      const page = await ask<{ sessions: Info[]; hits?: { sessionId: string; seq?: number; text?: string }[] }>(`/sessions?${query}`, {
        signal: stop.signal,
      }).catch(() => undefined);
      if (!page) return;
      const places = new Map((page.hits ?? []).map((hit) => [hit.sessionId, hit]));
      setFound(
        inFile
          ? (page.hits ?? []).map((hit) => ({ ...page.sessions[0], seq: hit.seq, title: hit.text }))
          : page.sessions.slice(0, 12).map((info) => ({ ...info, seq: places.get(info.sessionId)?.seq, text: places.get(info.sessionId)?.text })),
      );
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
        placeholder={inFile ? "Search this session" : "Search all sessions"}
        aria-label={inFile ? "Search this session" : "Search all sessions"}
        value={words}
        onInput={(event) => setWords(event.currentTarget.value)}
        onKeyDown={press}
      />
      <ul class="pal" role="listbox" aria-label="Sessions">
        {found.map((info, at) => (
          <li key={`${info.sessionId} ${info.seq}`} role="option" aria-selected={at === chosen} onClick={() => open(info)}>
            <Mark kind={statusOf(info.status)[0]} /> <span dir="auto">{info.title ?? info.about ?? info.sessionId}</span>
            {info.seq !== undefined && <small>#{info.seq}</small>}
            {info.text && <small class="hit" dir="auto">{info.text}</small>}
          </li>
        ))}
        {found.length === 0 && <li class="dim">{words || !inFile ? "Nothing found" : "Type what you look for"}</li>}
      </ul>
    </Over>
  );
}

const KEYS: [string, string, boolean?][] = [
  ["j k", "next, previous step"],
  ["J K", "next, previous turn"],
  ["n N", "next, previous problem"],
  ["g g, G", "first, last step"],
  ["1–5, [ ]", "tabs of the detail"],
  [".", "what is new, or everything"],
  ["e", "open or close the selected step"],
  ["m", "widths of the strip: steps, time, cost"],
  ["o", "outline"],
  ["w", "what if", true],
  ["b", "branches", true],
  ["a", "focus Approve", true],
  ["d", "deny, with a note", true],
  ["i", "write", true],
  ["Space", "pause the run", true],
  ["f", "follow the end"],
  ["/ or ⌘K", "search and jump"],
  ["g s, g i", "sessions, inbox", true],
  ["t", "theme"],
  ["Esc", "close"],
];

export function Keys({ onClose }: { onClose: () => void }) {
  return (
    <Over label="Keys" onClose={onClose}>
      <h2>Keys</h2>
      <dl class="keys">
        {KEYS.filter(([, , server]) => !server || !inFile).map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      {!inFile && (
        <p class="dim">
          No single key decides: <kbd>a</kbd> only moves to Approve.
        </p>
      )}
      <button class="btn" onClick={onClose}>
        Close
      </button>
    </Over>
  );
}
