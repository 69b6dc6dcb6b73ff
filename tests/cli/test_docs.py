"""The documentation stays true: the commands, options, make targets and files that it names exist."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

from switchsum import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]

INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def commands(page: Path) -> list[list[str]]:
    """What the page tells people to type: lines after a prompt in fenced blocks, and inline code, in words."""
    text = page.read_text()
    typed = [
        line.strip().removeprefix("$ ")
        for _, block in FENCE.findall(text)
        for line in block.splitlines()
        if line.strip().startswith("$ ")
    ]
    typed += INLINE.findall(FENCE.sub("", text))
    return [shlex.split(line, comments=True) for line in typed if line.startswith(("make ", "switchsum ", ".venv/bin/"))]


def problem_with(words: list[str]) -> str | None:
    """Why `switchsum ...` would be misuse, as far as names go."""
    root = typer.main.get_command(cli.app)
    known = {option for parameter in root.params for option in parameter.opts} | {"--help"}
    rest = iter(words)
    for word in rest:
        if word == "--":  # what follows is another program's
            break
        name = word.partition("=")[0]
        if not word.startswith("-"):
            if hasattr(root, "commands") and word in root.commands:
                root = root.commands[word]
                known = {option for parameter in root.params for option in parameter.opts} | {"--help"}
            elif hasattr(root, "commands"):
                return f"there is no command {word!r}"
        elif name not in known:
            return f"{root.name} has no option {name!r}"
        elif hasattr(root, "commands") and name == word and any(word in p.opts and not p.is_flag for p in root.params):
            next(rest, None)  # its value is no command
    return None


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_commands_and_options_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    problems = []
    for words in commands(page):
        if words[0] == "make":
            problems += [f"no make target {word!r}" for word in words[1:] if "=" not in word and word not in targets]
        elif Path(words[0]).name == "switchsum":
            found = problem_with(words[1:])
            problems += [f"{' '.join(words)}: {found}"] if found else []
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_linked_files_exist(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_named_paths_exist(page: Path) -> None:
    """`folder/file` in inline code is a path from the top of the repository; <...>, * and / alone stand for others."""
    roots = {entry.name for entry in ROOT.iterdir() if entry.is_dir()}
    paths = [code for code in INLINE.findall(FENCE.sub("", page.read_text())) if code.partition("/")[0] in roots]
    missing = [path for path in paths if "/" in path and not re.search(r"[<*\s]", path) and not (ROOT / path).exists()]
    assert missing == []


def texts_of(folder: Path) -> list[str]:
    """Every string literal of the Python files below; a placeholder of an f-string becomes a line break."""
    texts = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\n" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_errors_of_the_troubleshooting_page_exist() -> None:
    """Each row's error can really be printed: what stands between the … is text of the program."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    errors = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(errors) > 20
    folders = ("bmv2_topologies", "controller", "host_agent", "protos", "softswitch", "switchsum")
    texts = [text for name in folders for text in texts_of(ROOT / name)]
    unknown = [error for error in errors if not can_be_printed(error, texts)]
    assert unknown == []


def can_be_printed(error: str, texts: list[str]) -> bool:
    pieces = [piece.strip() for piece in error.split("…") if piece.strip()]
    return any(all(piece in text for piece in pieces) for text in texts)


def test_every_command_is_documented() -> None:
    named = {tuple(words[1:3]) for page in PAGES for words in commands(page) if Path(words[0]).name == "switchsum"}
    root = typer.main.get_command(cli.app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert any(words[:1] == (name,) for words in named), name
        for inner in getattr(command, "commands", ()):
            assert (name, inner) in named, inner


def test_this_test_can_see_a_lie() -> None:
    assert problem_with(["demo", "--workers", "8", "--loss=0.05"]) is None
    assert problem_with(["demo", "--wrokers", "8"]) == "demo has no option '--wrokers'"
    assert problem_with(["dmeo"]) == "there is no command 'dmeo'"
    assert problem_with(["rack", "run", "--pcap", "DIR", "FILE", "--", "ping", "-c", "1"]) is None
    assert problem_with(["rack", "run", "--pacp", "DIR", "FILE"]) == "run has no option '--pacp'"
