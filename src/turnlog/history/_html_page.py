"""The page around a conversation: its styles, its policy of loading nothing."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ --ground: #fbfaf7; --ink: #21201c; --soft: #6f6b60; --line: #e3dfd4;
  --user: #f0ece1; --code: #f4f1e9; --accent: #2f6f5e; --wrong: #a3402f; --waits: #8a6100; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #191a1b; --ink: #e6e3da; --soft: #98948a; --line: #33342f;
    --user: #24262a; --code: #202224; --accent: #7cc4ae; --wrong: #e58b78; --waits: #e0b060; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }}
main {{ max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
.about, .by, .note, footer {{ color: var(--soft); font-size: .85rem; }}
.note.wrong {{ color: var(--wrong); }}
.about {{ margin: 0 0 2rem; }}
article {{ margin: 1.5rem 0; }}
.by {{ margin: 0 0 .3rem; display: flex; gap: 0 .6rem; flex-wrap: wrap; align-items: baseline; }}
.by b {{ color: var(--ink); }}
.user .said {{ background: var(--user); border-radius: .6rem; padding: .7rem 1rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.text + .text {{ margin-top: .6rem; }}
pre {{ background: var(--code); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem;
  margin: .5rem 0; font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 32rem; overflow: auto; }}
details {{ border-left: 2px solid var(--line); margin: .5rem 0; padding-left: .8rem; }}
summary {{ cursor: pointer; color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }}
summary code {{ color: var(--accent); }}
summary span {{ display: block; padding-left: 1rem; }}
summary b {{ font-weight: 600; }}
.fine {{ color: var(--accent); }}
.wrong {{ color: var(--wrong); }}
.waits {{ color: var(--waits); }}
.hidden {{ color: var(--soft); font-style: italic; }}
h2 {{ font-size: 1.05rem; margin: 1rem 0 .4rem; }}
code {{ font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }}
.text code, td code {{ background: var(--code); border-radius: .25rem; padding: .1em .3em; }}
.wide {{ overflow-x: auto; margin: .6rem 0; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .3rem .9rem .3rem 0; text-align: left;
  vertical-align: top; }}
details p {{ color: var(--soft); font-size: .85rem; margin: .6rem 0 0; }}
img {{ max-width: 100%; border-radius: .4rem; display: block; margin: .5rem 0; }}
.note {{ border-top: 1px solid var(--line); padding-top: .5rem; margin: 1.2rem 0; overflow-wrap: anywhere; }}
footer {{ border-top: 1px solid var(--line); margin-top: 3rem; padding-top: .8rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="about">{about}</p>
{body}
<footer>{footer}</footer>
</main>
</body>
</html>
"""
