// What waits for a person: the whole call, why it asks, and the ways to answer. Nothing is decided that was
// not shown: a decision carries the digest of the request.

import { useRef, useState } from "preact/hooks";

import { type Pending, place, post, Problem, type Question } from "./api";
import { inFile } from "./file";
import { age, compact } from "./format";
import { Icon, toolIcon } from "./icons";
import { linkTo, type Waiting } from "./main";

function diffOf(args: Record<string, unknown>): { path: string; rows: [string, string][] } | undefined {
  const pick = (...names: string[]) => names.map((name) => args[name]).find((value) => typeof value === "string") as string | undefined;
  const path = pick("path", "file", "file_path", "filename") ?? "";
  const old = pick("old", "old_text", "old_string", "before");
  const fresh = pick("new", "new_text", "new_string", "after") ?? (path ? pick("content", "text") : undefined);
  if (fresh === undefined) return undefined;
  const rows: [string, string][] = [];
  const a = old === undefined ? [] : old.split("\n");
  const b = fresh.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  for (const line of a.slice(0, head)) rows.push([" ", line]);
  for (const line of a.slice(head, a.length - tail)) rows.push(["-", line]);
  for (const line of b.slice(head, b.length - tail)) rows.push(["+", line]);
  for (const line of a.slice(a.length - tail)) rows.push([" ", line]);
  return { path, rows };
}

function about(args: Record<string, unknown>): string {
  const first = Object.values(args).find((value) => typeof value === "string" && value !== "") as string | undefined;
  return (first ?? compact(args)).split("\n")[0].slice(0, 60);
}

export function Arguments({ args }: { args: Record<string, unknown> }) {
  const diff = diffOf(args);
  if (diff) {
    const added = diff.rows.filter(([sign]) => sign === "+").length;
    const removed = diff.rows.filter(([sign]) => sign === "-").length;
    return (
      <>
        <div class="dpath">
          <Icon name="file" /> <span>{diff.path}</span>
          <span class="grow" />
          <span class="plus">+{added}</span> <span class="minus">−{removed}</span>
        </div>
        <div class="diff" tabIndex={0} role="region" aria-label={`Change of ${diff.path}`}>
          {diff.rows.map(([sign, line], at) => (
            <div key={at} class={sign === "+" ? "a" : sign === "-" ? "d" : ""}>
              <span aria-hidden="true">{sign}</span>
              <code>{line || " "}</code>
            </div>
          ))}
        </div>
      </>
    );
  }
  const names = Object.keys(args);
  if (names.length === 1 && typeof args[names[0]] === "string") return <pre class="args">{args[names[0]] as string}</pre>;
  return <pre class="args">{JSON.stringify(args, null, 2)}</pre>;
}

interface AskProps {
  asked: Pending;
  online: boolean;
  onChange: () => void;
  inbox?: boolean;
  note?: { title?: string; seq?: number; words?: string };
}

export function Ask({ asked, online, onChange, inbox, note: told }: AskProps) {
  const [mode, setMode] = useState<"" | "deny" | "change">("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const note = useRef<HTMLTextAreaElement>(null);
  const { requested } = asked;

  const decide = async (action: string, more: object = {}) => {
    setBusy(true);
    setProblem("");
    try {
      await post(`${place(asked.sessionId)}/decide`, {
        toolCallId: requested.toolCallId,
        digest: requested.digest,
        action,
        ...more,
      });
      setMode("");
      onChange();
    } catch (error) {
      setProblem((error as Problem).message);
      if ((error as Problem).status === 409) onChange();
    }
    setBusy(false);
  };
  const change = () => {
    try {
      decide("modify", { arguments: JSON.parse(note.current!.value) });
    } catch {
      setProblem("The arguments are not valid JSON.");
    }
  };
  const lapses = requested.expiresAt ? ` · lapses ${new Date(requested.expiresAt).toLocaleString()}` : "";
  return (
    <section class="ask" aria-label={`${requested.toolName} waits for your decision`}>
      {inbox ? (
        <header class="in">
          <Icon name={toolIcon(requested.toolName)} /> <b>{requested.toolName}</b> <span class="what">{about(requested.arguments)}</span>
          <span class="grow" /> <span>{age(asked.requestedAt)}</span>
        </header>
      ) : (
        <header>
          <Icon name="pause" /> <b>{inFile ? "Waited for a decision" : "Waits for your decision"}</b>
          <span class="grow" />
          <span>
            {requested.reason ?? "a person decides"}
            {lapses}
          </span>
        </header>
      )}
      {inbox && (
        <p class="why">
          <a href={linkTo(asked.sessionId, told?.seq)} dir="auto">
            {told?.title ?? asked.sessionId}
            {told?.seq !== undefined && ` · #${told.seq}`}
          </a>{" "}
          · {requested.reason ?? "a person decides"}
          {lapses}
          {told?.words && (
            <q class="before" dir="auto">
              {told.words}
            </q>
          )}
        </p>
      )}
      <Arguments args={requested.arguments} />
      {mode === "deny" && (
        <div class="note">
          <label>
            Why not? The model reads this.
            <textarea ref={note} rows={2} autofocus />
          </label>
          <button class="btn" disabled={busy || !online} onClick={() => decide("deny", { note: note.current!.value || undefined })}>
            Deny
          </button>
        </div>
      )}
      {mode === "change" && (
        <div class="note">
          <label>
            The arguments that run instead
            <textarea ref={note} rows={8} autofocus defaultValue={JSON.stringify(requested.arguments, null, 2)} />
          </label>
          <button class="btn" disabled={busy || !online} onClick={change}>
            Approve with these
          </button>
        </div>
      )}
      {problem && (
        <p class="bad" role="alert">
          {problem}
        </p>
      )}
      {!inFile && (
      <footer>
        <button class="btn pri approve" disabled={busy || !online} onClick={() => decide("approve")}>
          Approve {!inbox && <kbd>A</kbd>}
        </button>
        <button class="btn deny" disabled={busy || !online} onClick={() => setMode(mode === "deny" ? "" : "deny")}>
          Deny… {!inbox && <kbd>D</kbd>}
        </button>
        <button class="btn bare" disabled={busy || !online} onClick={() => setMode(mode === "change" ? "" : "change")}>
          {inbox ? "Change…" : "Change the arguments…"}
        </button>
        <span class="grow" />
        {inbox ? (
          <a class="btn bare" href={linkTo(asked.sessionId)}>
            Open <Icon name="right" />
          </a>
        ) : (
          <button class="btn bare" disabled={busy || !online} onClick={() => decide("abort")}>
            Abort run
          </button>
        )}
      </footer>
      )}
    </section>
  );
}

export function Answer({ question, online, onChange }: { question: Question; online: boolean; onChange: () => void }) {
  const [problem, setProblem] = useState("");
  const text = useRef<HTMLTextAreaElement>(null);
  const answer = async () => {
    const given = text.current!.value;
    let content: unknown = given;
    try {
      content = JSON.parse(given);
    } catch {
      content = given;
    }
    try {
      await post(`${place(question.sessionId)}/answer`, { toolCallId: question.asked.toolCallId, content });
      onChange();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <section class="ask" aria-label={`${question.asked.toolName} waits for an answer`}>
      <header class="in">
        <Icon name={toolIcon(question.asked.toolName)} /> <b>{question.asked.toolName}</b>
        <span class="grow" /> <a href={linkTo(question.sessionId)}>{question.sessionId}</a>
      </header>
      <p class="why">{question.asked.question ?? question.asked.reason}</p>
      <div class="note">
        <label>
          Your answer
          <textarea ref={text} rows={2} />
        </label>
      </div>
      {problem && <p class="bad" role="alert">{problem}</p>}
      <footer>
        <button class="btn pri" disabled={!online} onClick={answer}>
          Answer
        </button>
      </footer>
    </section>
  );
}

export function Inbox({ waiting, online, onChange }: { waiting: Waiting; online: boolean; onChange: () => void }) {
  const count = waiting.approvals.length + waiting.questions.length;
  return (
    <>
      <h2 class="ih">
        Waiting for you {count > 0 && <span class="count">{count}</span>}
      </h2>
      {waiting.approvals.map((asked) => (
        <Ask key={asked.entryId} asked={asked} online={online} onChange={onChange} note={waiting.notes?.[asked.entryId]} inbox />
      ))}
      {waiting.questions.map((question) => (
        <Answer key={question.asked.toolCallId} question={question} online={online} onChange={onChange} />
      ))}
      <p class="dim">
        {count === 0 ? "Nothing waits. " : ""}A call that is not decided simply waits; the process may end meanwhile. Decisions
        are bound to exactly what is shown.
      </p>
    </>
  );
}
