"""What reports are made of: pages of HTML that need nothing else. Pictures are in them, and they can be printed."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from switchsum.measure.drawing import Picture

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .5rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; white-space: nowrap }
th { background: #f3f3f3; font-weight: 600 }
.wide { overflow-x: auto } th.text, td.text, .note { text-align: left }
.about td, td.note { white-space: normal }
ul { padding-left: 1.2rem } li { margin: .25rem 0 }
.good { color: #005a3c; font-weight: 600 } .bad { color: #a8200d; font-weight: 600 }
code { font-size: 12px; overflow-wrap: anywhere }
figure { margin: 1.2rem 0 2rem; break-inside: avoid }
img { max-width: 100%; height: auto }
figcaption { font-size: 13px; max-width: 60rem }
@page { size: A4 landscape; margin: 12mm }
@media print { body { margin: 0; max-width: none; font-size: 11px } table, code, figcaption { font-size: 8px }
  th, td { padding: .1rem .25rem }
  .wide { overflow: visible } h2, h3 { break-after: avoid } tr { break-inside: avoid } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """HTML 5. `title`: plain; `parts`: of the body, HTML; empty ones are left out."""
    body = "\n".join(part for part in parts if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure aria-label="{text(picture.title)}">'
        f'<img alt="{text(picture.alt)}" width="{picture.width}" src="data:image/png;base64,{data}">'
        f"<figcaption>{bullets(map(text, picture.says))}</figcaption></figure>"
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0) -> str:
    """`titles`: plain; `rows`: HTML; the first `texts` columns are names, one called "note" is a sentence."""
    kinds = [
        ' class="text"' if number < texts else ' class="note"' if titles[number] == "note" else ""
        for number in range(len(titles))
    ]
    head = "".join(f'<th{kind} scope="col">{text(title)}</th>' for kind, title in zip(kinds, titles, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def bullets(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def text(plain: str) -> str:
    return html.escape(plain)


def good(plain: str) -> str:
    return f'<span class="good">{text(plain)}</span>'


def bad(plain: str) -> str:
    return f'<span class="bad">{text(plain)}</span>'
