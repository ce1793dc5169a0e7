"""A page of the docs, run from top to bottom as a reader pastes it: files it shows, shell lines, Python; and what it prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.cli import main

FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
DEADLINE = 240.0  # seconds for processes on a busy machine


class Block(NamedTuple):
    """A fenced block of a page: its language, the file it stands for, its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def shell_lines(block: Block) -> list[list[str]]:
    """The words of each command of a shell block."""
    return [words for line in block.text.replace("\\\n", " ").splitlines() if (words := shlex.split(line, comments=True))]


class PageShell:
    """Runs the commands of a page in this process, which has imported torch already; those in the background are processes.

    `change` may replace a command's words: fewer seeds, a free port.
    """

    def __init__(self, change: Callable[[list[str]], list[str]]) -> None:
        self.change = change
        self.background: list[subprocess.Popen[bytes]] = []

    def run(self, page: Path) -> list[tuple[str, str]]:
        """Run the page in the current folder; each output that it shows, and what was printed since the one before."""
        shown, printed = [], ""
        for block in blocks(page):
            if block.title:
                Path(block.title).write_text(block.text)
            elif block.language == "python":
                printed += self.captured(lambda text=block.text: exec(compile(text, str(page), "exec"), {"__name__": "example"}))
            elif block.language == "bash":
                printed += "".join(self.captured(lambda words=words: self.command(words)) for words in shell_lines(block))
            elif block.language == "text":
                shown.append((block.text, printed))
                printed = ""
        return shown

    @staticmethod
    def captured(call: Callable[[], object]) -> str:
        """What a call prints."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            call()
        return out.getvalue()

    def command(self, words: list[str]) -> None:
        """One line of a shell block; an unknown program is an error."""
        words = self.change(words)
        program, *arguments = words
        if program == "atoll" and arguments[-1] == "&":
            self.start(arguments[:-1])
        elif program == "atoll":
            assert self.call(words) == 0, shlex.join(words)
        elif program == "python":
            print(subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout)
        elif program == "wait":
            for process in self.background:
                out, _ = process.communicate(timeout=DEADLINE)
                print(out.decode())
                assert process.returncode == 0, out.decode()
        elif program in ("cd", "cp"):
            os.chdir(arguments[0]) if program == "cd" else shutil.copy(*arguments)
        else:
            assert program == "pip", f"{shlex.join(words)} is not run"

    @staticmethod
    def call(words: Sequence[str]) -> int:
        """The exit code of a command of atoll, run in this process."""
        before, sys.argv = sys.argv, list(words)
        try:
            main.main()
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv = before
        return 0

    def start(self, arguments: Sequence[str]) -> None:
        """A command in the background."""
        program = [sys.executable, "-c", "from atoll.cli.main import main; main()", *arguments]
        self.background.append(subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))

    def close(self) -> None:
        """End what still runs after a failure."""
        for process in self.background:
            if process.poll() is None:
                process.kill()
                process.communicate()


@contextlib.contextmanager
def page_shell(folder: Path, change: Callable[[list[str]], list[str]]) -> Iterator[PageShell]:
    """A shell in a folder."""
    shell, before = PageShell(change), Path.cwd()
    os.chdir(folder)
    try:
        yield shell
    finally:
        shell.close()
        os.chdir(before)


def script(page: Path) -> str:
    """The page as one program for bash."""
    parts = []
    for block in blocks(page):
        if block.title:
            parts.append(f"cat > {shlex.quote(block.title)} <<'END_OF_FILE'\n{block.text}END_OF_FILE\n")
        elif block.language == "python":
            parts.append(f"python - <<'END_OF_FILE'\n{block.text}END_OF_FILE\n")
        elif block.language == "bash":
            parts.append("".join(f"{line}\n" for line in block.text.splitlines() if not line.startswith("pip ")))
    return "".join(parts)


def unseen(shown: str, printed: str, tolerance: float = 0.5) -> list[str]:
    """Lines that a page shows and that were not printed; numbers may differ by `tolerance`, or a twentieth.

    Lines with an ellipsis stand for others and are passed over, but for intervals (`-1.0 … +1.0`). Of a line with `±` the last
    number, which is seconds, does not count.
    """
    there, asked = [_form(line) for line in printed.splitlines()], filter(_is_checked, shown.splitlines())
    return [line for line in asked if not any(_same(_form(line), one, tolerance) for one in there)]


def _is_checked(line: str) -> bool:
    return bool(line.strip(" ─")) and ("…" not in line or bool(re.search(r"\d … [+-]\d", line)))


def _form(line: str) -> tuple[str, list[float]]:
    """The words of a line, and its numbers."""
    words = " ".join(NUMBER.sub("0", line).split())
    numbers = [float(number.replace(",", "")) for number in NUMBER.findall(line)]
    return words, numbers[:-1] if "±" in line and numbers else numbers


def _same(one: tuple[str, list[float]], other: tuple[str, list[float]], tolerance: float) -> bool:
    close = (abs(a - b) <= max(tolerance, 0.05 * abs(a)) for a, b in zip(one[1], other[1], strict=False))
    return one[0] == other[0] and len(one[1]) == len(other[1]) and all(close)
