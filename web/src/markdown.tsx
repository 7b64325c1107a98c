// Markdown of a model as DOM nodes. Nothing is ever read as HTML: what is not known here stays text.

import type { ComponentChildren } from "preact";

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*([^*]+)\*\*|(?<![\w*])\*([^*\s][^*]*)\*(?!\w)|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text: string): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) out.push(text.slice(at, found.index));
    if (found[2] !== undefined) out.push(<code>{found[2]}</code>);
    else if (found[3] !== undefined) out.push(<strong>{found[3]}</strong>);
    else if (found[4] !== undefined) out.push(<em>{found[4]}</em>);
    else
      out.push(
        <a href={found[6]} rel="noopener noreferrer nofollow" target="_blank">
          {found[5]}
        </a>,
      );
    at = found.index + found[0].length;
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

function lines(text: string): ComponentChildren[] {
  return text.split("\n").flatMap((line, at) => (at ? [<br />, ...inline(line)] : inline(line)));
}

const RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const cells = (row: string) =>
  row
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

export function Markdown({ text }: { text: string }) {
  const blocks: ComponentChildren[] = [];
  const rows = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < rows.length) {
    const row = rows[at];
    const fence = /^\s*(```+|~~~+)/.exec(row);
    if (fence) {
      const code: string[] = [];
      at += 1;
      while (at < rows.length && !rows[at].trim().startsWith(fence[1])) code.push(rows[at++]);
      at += 1;
      blocks.push(<pre tabIndex={0}>{code.join("\n")}</pre>);
    } else if (!row.trim()) {
      at += 1;
    } else if (/^#{1,6}\s/.test(row)) {
      blocks.push(<h4>{inline(row.replace(/^#+\s+/, ""))}</h4>);
      at += 1;
    } else if (ITEM.test(row)) {
      const items: ComponentChildren[] = [];
      const ordered = /\d/.test(ITEM.exec(row)![2]);
      while (at < rows.length) {
        const item = ITEM.exec(rows[at]);
        if (!item) break;
        let body = item[3];
        at += 1;
        while (at < rows.length && /^\s{2,}\S/.test(rows[at]) && !ITEM.test(rows[at])) body += `\n${rows[at++].trim()}`;
        items.push(<li class={item[1].length >= 2 ? "deep" : undefined}>{lines(body)}</li>);
      }
      blocks.push(ordered ? <ol>{items}</ol> : <ul>{items}</ul>);
    } else if (row.includes("|") && rows[at + 1]?.includes("-") && RULE.test(rows[at + 1]) && cells(row).length === cells(rows[at + 1]).length) {
      const head = cells(row);
      const body: string[][] = [];
      at += 2;
      while (at < rows.length && rows[at].includes("|") && rows[at].trim()) body.push(cells(rows[at++]));
      blocks.push(
        <div class="wide">
          <table>
            <thead>
              <tr>
                {head.map((cell) => (
                  <th>{inline(cell)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {body.map((each) => (
                <tr>
                  {head.map((_, place) => (
                    <td>{inline(each[place] ?? "")}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>,
      );
    } else if (row.startsWith(">")) {
      const quote: string[] = [];
      while (at < rows.length && rows[at].startsWith(">")) quote.push(rows[at++].replace(/^>\s?/, ""));
      blocks.push(<blockquote>{lines(quote.join("\n"))}</blockquote>);
    } else {
      const words: string[] = [];
      while (at < rows.length && rows[at].trim() && !ITEM.test(rows[at]) && !/^\s*(```|~~~|#{1,6}\s|>)/.test(rows[at]))
        words.push(rows[at++]);
      if (words.length === 0) words.push(rows[at++]);
      blocks.push(<p>{lines(words.join("\n"))}</p>);
    }
  }
  return (
    <div class="prose" dir="auto">
      {blocks}
    </div>
  );
}
