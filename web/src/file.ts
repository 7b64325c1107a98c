// A session that came with the page, as `turnlog export --format html` writes it: the questions that the page asks
// a server are answered from it. Nothing can be changed there.

import { type Entry, type Info, type Message, Problem, type Saw, type SessionView, type Step } from "./api";

interface CallStep {
  call: number;
  target: { providerId: string; model: string };
  headChanged?: boolean;
  known: number;
  added: number[];
  origins: Saw["view"]["origins"];
  contextHash: string;
  recordedHash: string;
  redacted?: boolean;
  gauge: Saw["view"]["gauge"];
  window?: number;
  foldAt?: number;
  folds: number;
  head: number;
}

interface Held {
  view: SessionView;
  entries: Entry[];
  calls: CallStep[];
  messages: Message[];
  heads: { systemPrompt?: string; toolSpecs?: { name: string; description?: string }[] }[];
  screens: [number, string][];
  pictures: Record<string, string>;
}

const data = document.getElementById("session")?.textContent;
const held: Held | undefined = data ? JSON.parse(data) : undefined;

/** Whether the page is a file, with its session inside. */
export const inFile = held !== undefined;
export const ownId = held?.view.info?.sessionId ?? "";

export const picture = (name: string) => (held ? held.pictures[name] : `api/blobs/${encodeURIComponent(name)}`);

const LONGEST = 4000;

function cut(value: any): any {
  if (typeof value === "string")
    return value.length <= LONGEST ? value : `${value.slice(0, LONGEST)}… [${(value.length - LONGEST).toLocaleString()} more characters]`;
  if (Array.isArray(value)) return value.map(cut);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, cut(item)]));
  return value;
}

function messageOf(place: number): Message {
  return place < 0 ? held!.entries[-place - 1].payload.message : held!.messages[place];
}

function sawAt(number: number): Saw {
  const calls = held!.calls;
  const call = calls[number - 1];
  if (!call) throw new Problem(404, "NoCall", `There is no model call ${number}.`);
  // A call says what is new in it: go back until nothing is taken from an earlier one.
  const places: number[][] = [];
  const origins: Saw["view"]["origins"][] = [];
  let needed = Infinity;
  let missing = Infinity;
  for (let at = number - 1; at >= 0 && (needed > 0 || missing > 0); at -= 1) {
    const { known, added, origins: told } = calls[at];
    const size = known + added.length;
    if (needed > known) {
      places.push(added.slice(0, Math.min(needed, size) - known));
      needed = known;
    }
    if (missing > size - told.length) {
      origins.push(told.slice(0, Math.min(missing, size) - (size - told.length)));
      missing = size - told.length;
    }
  }
  const head = held!.heads[call.head] ?? {};
  return {
    known: number === 1 ? 0 : call.known,
    previous: number === 1 ? undefined : number - 1,
    headChanged: call.headChanged,
    view: {
      ...call,
      matches: call.contextHash === call.recordedHash,
      systemPrompt: head.systemPrompt,
      toolSpecs: head.toolSpecs ?? [],
      messages: places.reverse().flat().map((place) => cut(messageOf(place))),
      origins: origins.reverse().flat(),
    },
  };
}

function find(words: string): { sessions: Info[]; hits: { sessionId: string; seq: number; text: string }[] } {
  const wanted = words.toLowerCase();
  const hits: { sessionId: string; seq: number; text: string }[] = [];
  if (wanted)
    for (const step of held!.view.timeline.steps as Step[]) {
      const texts = step.entries.map((seq) => held!.entries[seq - 1]).flatMap((entry) => [entry?.payload?.message, entry?.payload?.error, entry?.payload?.summary]);
      const text = [step.tool, step.title, step.error, JSON.stringify(texts)].join(" ");
      if (text.toLowerCase().includes(wanted)) hits.push({ sessionId: ownId, seq: step.seq, text: step.title || step.tool || step.kind });
      if (hits.length === 50) break;
    }
  return { sessions: [held!.view.info], hits };
}

/** What a server would say to `path`. */
export function answer(path: string): any {
  const { view, entries, screens } = held!;
  const url = new URL(path, "http://file/");
  const number = (name: string, none: number) => Number(url.searchParams.get(name) ?? none);
  const [, kind, id, what, place] = url.pathname.split("/").map(decodeURIComponent);
  if (kind === "inbox") return { approvals: view.pending, questions: [] };
  if (kind === "sessions" && !id) return find(url.searchParams.get("q") ?? "");
  if (kind !== "sessions" || id !== ownId) throw new Problem(404, "NotInFile", "This file holds one session, and not this one.");
  if (!what) return view;
  if (what === "entries" && place) return entries[Number(place) - 1];
  if (what === "entries") {
    const after = number("after", 0);
    return { entries: entries.slice(after, Math.min(number("upto", entries.length), after + number("limit", 500))), tail: entries.length };
  }
  if (what === "context") return sawAt(Number(place));
  if (what === "screen") return { text: screens.filter(([seq]) => seq <= Number(place)).at(-1)?.[1] ?? null };
  throw new Problem(404, "NotInFile", "This is not in the file.");
}
