// Numbers, times and words as the timeline shows them.

import type { Message, Step } from "./api";

export function tokens(count: number | undefined): string {
  if (count === undefined) return "";
  if (count < 1000) return String(count);
  return count < 100_000 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

export function money(cost: number | undefined): string {
  if (cost === undefined) return "";
  return cost >= 0.1 || cost === 0 ? `$${cost.toFixed(2)}` : `$${cost.toPrecision(2)}`;
}

export function duration(ms: number | undefined): string {
  if (ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} m ${Math.round((ms % 60_000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} m` : `${Math.round(hours / 24)} d`;
}

export const count = (number: number, thing: string) => `${number} ${thing}${number === 1 ? "" : "s"}`;

export function age(timestamp: string, now = Date.now()): string {
  const minutes = Math.max(0, (now - Date.parse(timestamp)) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.round(minutes)} min`;
  if (minutes < 48 * 60) return `${Math.round(minutes / 60)} h`;
  return `${Math.round(minutes / 1440)} d`;
}

export function clock(timestamp: string): string {
  return new Date(timestamp).toTimeString().slice(0, 8);
}

export function day(timestamp: string): string {
  const then = new Date(timestamp);
  const today = new Date();
  const days = Math.round((Date.parse(today.toDateString()) - Date.parse(then.toDateString())) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return then.toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" });
}

export const STATUS_WORDS: Record<string, [string, string]> = {
  awaiting_human: ["wait", "Waits for you"],
  completed: ["done", "Completed"],
  failed: ["fail", "Failed"],
  aborted: ["stop", "Aborted"],
  paused: ["stop", "Paused"],
  idle: ["done", "Idle"],
};

export function statusOf(status: string | undefined): [string, string] {
  return STATUS_WORDS[status ?? "idle"] ?? ["run", "Running"];
}

export function textOf(message: Message): string {
  const lines: string[] = [];
  for (const part of message.parts) {
    if (part.kind === "text") lines.push(part.payload.text);
    else if (part.kind === "tool_call") lines.push(`→ ${part.payload.toolName} ${compact(part.payload.arguments)}`);
    else if (part.kind === "tool_result") lines.push(resultText(part.payload));
    else if (part.kind === "thinking") lines.push(`(thinks) ${part.payload.text ?? ""}`);
    else lines.push(`[${part.kind}]`);
  }
  return lines.join("\n");
}

export function resultText(result: any): string {
  const content = result.content;
  if (typeof content === "string") return content;
  if (Array.isArray(content))
    return content.map((part: any) => (part.kind === "text" ? part.payload.text : `[${part.kind}]`)).join("\n");
  return JSON.stringify(content, null, 2);
}

export function compact(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "object") {
    const values = Object.values(value as object);
    if (values.length === 1 && typeof values[0] === "string") return values[0];
  }
  return JSON.stringify(value);
}

export function nameOf(step: Step): string {
  switch (step.kind) {
    case "model":
      return `Model call ${step.call ?? ""}`.trim();
    case "tool":
      return step.tool ?? "Tool";
    case "input":
      return step.detail === "steering" ? "Message to the run" : step.detail === "correction" ? "Correction" : "You";
    case "fold":
      return "Fold";
    case "recap":
      return "Recap";
    case "run_started":
    case "run_ended":
      return `Run ${step.run ?? ""}`.trim();
    case "prompt":
      return "Instructions";
    case "tools":
      return "Tools";
    case "model_change":
      return "Model";
    default:
      return step.kind.replace("_", " ");
  }
}
