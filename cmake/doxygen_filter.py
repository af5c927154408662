#!/usr/bin/env python3
"""INPUT_FILTER of cmake/Doxyfile: turns the plain comments of pn's public headers into those that Doxygen reads, line by
line, so that its messages name the right ones. Comments inside functions, and headings (`---- .. ----`), stay out. The
first comment of a file is about the file.

usage: doxygen_filter.py FILE
"""
import re
import sys

SCOPE = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b")


class Scopes:
    """Whether a line stands inside of a function."""

    def __init__(self):
        self.inside = []  # of each open brace, whether it is a function's or an initialiser's
        self.statement = ""  # from the end of the statement before

    def function(self):
        return True in self.inside

    def read(self, line):
        line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", line)
        for c in re.sub(r"//.*|/\*.*?\*/", "", line) + " ":
            if c == "{":
                self.inside.append(not SCOPE.search(self.statement) or re.search("[(=]", self.statement) is not None)
            elif c == "}" and self.inside:
                self.inside.pop()
            self.statement = "" if c in "{};" else self.statement + c


def translate(lines):
    scopes = Scopes()
    about = []
    first, in_block = True, False
    for line in lines:
        text = line
        code = not in_block and not re.match(r"\s*(//|/\*|#)", line)
        if in_block or re.match(r"\s*/\*", line):  # C
            if first:
                about.append(re.sub(r"^\s*(/\*|\*/| \*) ?|\*/$", "", line))
            if first or scopes.function() or re.match(r"\s*/\* ----.*---- \*/$", line):
                text = ""
            elif not in_block:
                text = line.replace("/*", "/**", 1)
            in_block = "*/" not in line
        elif re.match(r"\s*//", line):
            if first:
                about.append(line[3:])
            heading = re.match(r"\s*// (----|clang-format)", line)
            text = "" if first or heading or scopes.function() else line.replace("//", "///", 1)
        elif not scopes.function():  # a comment beside a declaration or a macro
            text = re.sub(r"(\S\s+)//", r"\1///<", line, count=1)
            text = re.sub(r"(\S\s+)/\*", r"\1/**<", text, count=1)
            in_block = "/**<" in text and "*/" not in text
        yield text
        first = first and not code and not line.startswith("#")
        if code:
            scopes.read(line)
    yield from ["/** @file", *about, "*/"]


print(*translate(open(sys.argv[1], encoding="utf-8").read().splitlines()), sep="\n")
