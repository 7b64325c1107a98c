// Line icons on a 16-pixel grid.

const PATHS: Record<string, string> = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM11 11l3.5 3.5",
  user: "M8 8a2.7 2.7 0 1 0 0-5.4A2.7 2.7 0 0 0 8 8ZM3 14c.6-2.8 2.5-4 5-4s4.4 1.200 5 4",
  shell: "M3 4l4 4-4 4M8.500 12H13",
  edit: "M3 13l.8-3L11 2.800l2.200 2.200L6 12.200 3 13Z",
  tool: "M5 2.500h6v3l-2 1.500v6.500H7V7L5 5.500v-3Z",
  child: "M2.500 2.500h7.500v7.500H2.500zM6 6h7.500v7.500H6z",
  retry: "M13 8a5 5 0 1 1-1.500-3.500M13 2v3h-3",
  fold: "M2.500 3h11M2.500 13h11M8 4.500v2.500M6.500 6 8 7.500 9.500 6M8 11.500V9M6.500 10 8 8.500 9.500 10",
  fork: "M4 3v10M4 6c0 3 7 1.500 7 5.500M11 11.500V13M4 3V2M11 13v.5",
  export: "M8 10V2M5 4.500 8 1.500l3 3M3 9v4.500h10V9",
  left: "M10 3 5 8l5 5",
  right: "M6 3l5 5-5 5",
  send: "M2.500 8h10M8.500 4l4 4-4 4",
  pause: "M5.500 3v10M10.500 3v10",
  stop: "M4 4h8v8H4z",
  sun: "M8 10.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5ZM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1",
  file: "M4 1.500h5l3.500 3.500v9.500H4zM9 1.500V5h3.500",
  clip: "M12.500 7.500 7.500 12.500a3 3 0 0 1-4.200-4.200L9 2.500a2 2 0 0 1 2.800 2.800L6.500 10.600a1 1 0 0 1-1.400-1.400L9.500 4.800",
  close: "M3.500 3.500l9 9M12.500 3.500l-9 9",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
      <path d={PATHS[name] ?? PATHS.tool} />
    </svg>
  );
}

export function Mark({ kind }: { kind: string }) {
  return <span class={`mark ${kind}`} aria-hidden="true" />;
}

export function toolIcon(tool: string | undefined): string {
  if (tool === undefined) return "tool";
  if (/shell|bash|exec|run|job/.test(tool)) return "shell";
  if (/edit|write|patch/.test(tool)) return "edit";
  if (/read|list|glob|file/.test(tool)) return "file";
  if (/grep|search|find|recall/.test(tool)) return "search";
  return "tool";
}
