// What the server gives, and how it is asked. The types follow /api/openapi.json.

import { answer, inFile } from "./file";

export type Status = "done" | "running" | "waiting" | "failed" | "denied" | "unknown" | "stopped";

export interface Step {
  seq: number;
  end: number;
  kind: string;
  at: string;
  title?: string;
  status: Status;
  run?: number;
  entries: number[];
  ms?: number;
  waited?: number;
  call?: number;
  attempts?: number;
  toolCallId?: string;
  tool?: string;
  by?: string;
  decision?: string;
  error?: string;
  detail?: string;
  input?: number;
  cached?: number;
  output?: number;
  cost?: number;
  before?: number;
  after?: number;
}

export interface RunSpan {
  number: number;
  runId: string;
  first: number;
  last: number;
  at: string;
  status?: string;
  error?: string;
  model?: string;
  agent?: string;
  ms?: number;
  calls?: number;
  tools?: number;
  failed?: number;
  cost?: number;
}

export interface Usage {
  inputTokens: number;
  outputTokens: number;
  totalTokens: number;
  cachedInputTokens?: number;
  cost?: number;
}

export interface Timeline {
  title?: string;
  entries: number;
  runs: RunSpan[];
  steps: Step[];
  usage?: Usage;
  activeMs: number;
}

export interface Info {
  sessionId: string;
  entries: number;
  createdAt: string;
  updatedAt: string;
  title?: string;
  about?: string;
  status?: string;
  pending?: number;
  parentSessionId?: string;
  forkedAt?: number;
}

export interface Pending {
  entryId: string;
  sessionId: string;
  requestedAt: string;
  requested: {
    toolCallId: string;
    toolName: string;
    arguments: Record<string, unknown>;
    digest: string;
    reason?: string;
    expiresAt?: string;
  };
}

export interface Question {
  sessionId: string;
  asked: { toolCallId: string; toolName: string; reason: string; question?: string };
}

export interface SessionView {
  info: Info;
  state: { status: string; currentRunId?: string };
  timeline: Timeline;
  pending: Pending[];
  questions: Question[];
  branches: Info[];
  driver?: string;
  undriven?: boolean;
  canRun: boolean;
}

export interface Glance {
  last?: string;
  model?: string;
  cost?: number;
  calls?: number;
  buckets?: [number, string][];
}

export interface Part {
  kind: string;
  payload: any;
}

export interface Message {
  role: string;
  parts: Part[];
  timestamp?: string;
  meta?: any;
}

export interface Entry {
  kind: string;
  id: string;
  seq: number;
  timestamp: string;
  runId?: string;
  payload: any;
  purgedDigest?: string;
}

export interface Saw {
  known: number;
  previous?: number;
  headChanged?: boolean;
  view: {
    call: number;
    target: { providerId: string; model: string };
    systemPrompt?: string;
    toolSpecs: { name: string; description?: string }[];
    messages: Message[];
    contextHash: string;
    recordedHash: string;
    matches?: boolean;
    redacted?: boolean;
    gauge: { kind: string; tokens: number; share: number; count: number }[];
    window?: number;
    foldAt?: number;
    folds: number;
    origins: { first: number; last: number; tokens: number; kind: string; folded?: boolean }[];
  };
}

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

export async function ask<T>(path: string, init?: RequestInit): Promise<T> {
  if (inFile) return answer(path);
  let told: Response;
  try {
    told = await fetch(`api${path}`, init);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Problem(0, "Disconnected", "The server cannot be reached. What you see stays readable.");
  }
  if (!told.ok) {
    const problem = await told.json().catch(() => ({}));
    throw new Problem(told.status, problem.code ?? "Error", problem.detail ?? told.statusText);
  }
  return told.status === 204 ? (undefined as T) : told.json();
}

export function post<T>(path: string, body: unknown = {}): Promise<T> {
  return ask<T>(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
}

/** Hands a file over, to go with a message. */
export function upload(file: File): Promise<{ name: string }> {
  const query = new URLSearchParams({ name: file.name });
  return ask(`/blobs?${query}`, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file });
}

export const place = (id: string) => `/sessions/${encodeURIComponent(id)}`;
