"""Writes the pages docs/commands.md, from the command line, and docs/python.md, from docstrings.

See generate.py.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import operator
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

import commbench
from commbench import hooks
from commbench.cli import app
from commbench.cli.examples import EXAMPLES
from commbench.errors import EXIT_CODES
from commbench.results import Run

COMMANDS_HEAD = """# Commands, options and exit codes

<!-- Written by docs/generate.py from the command line; change it there. -->

`commbench COMMAND --help` prints the same. `make install` puts `commbench` into `.venv/bin`.
"""

PYTHON_HEAD = """# From Python

<!-- Written by docs/generate.py from docstrings; change them there. -->

`import commbench` loads neither torch nor MPI; a name is loaded when it is first used.

```python
from commbench import compare, load_run

run = load_run("results/mine")
print(
    run.collectives[["operation", "message_bytes", "time_us", "time_us_ci_low", "time_us_ci_high"]]
)
print(compare("results/monday", "results/friday").counts)
```

Columns of the tables: [columns.md](columns.md).
"""

#: Of `commbench.results.Run`, what a person reads.
ATTRIBUTES = (
    "collectives",
    "ddp",
    "pairs",
    "buckets",
    "overlap",
    "rows",
    "training_rows",
    "losses",
)
#: The longest line of a signature.
WIDTH = 80


def commands_page() -> str:
    """Return docs/commands.md, as text that ends in a newline."""
    lines = [COMMANDS_HEAD]
    for words, command in leaves(typer.main.get_command(app)):
        lines += _command(words, command)
    lines += ["## Exit codes\n", "| code | meaning |\n|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += [
        (
            "\n`tune -- COMMAND`, `watch -- COMMAND`, `lab run` and `lab exec` end with the exit code"
            " of their command."
        )
    ]
    lines += ["What launchers make of these codes: [faults.md](faults.md#exit-codes)."]
    return "\n".join(lines) + "\n"


def leaves(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - click's
    """Yield each command with the words by which it is called."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *words, name)
        else:
            yield (*words, name), command


def _command(words: tuple[str, ...], command: Any) -> list[str]:  # noqa: ANN401 - click's
    name = " ".join(words)
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["commbench", name, *command.collect_usage_pieces(context)])
    lines = [f"## {name}\n", f"```\n{usage}\n```\n", _paragraphs(command.help)]
    if examples := EXAMPLES.get(name):
        lines += ["| example | purpose |\n|---|---|"]
        lines += [f"| `{line}` | {purpose} |" for line, purpose in examples]
        lines += [""]
    lines += ["| option | meaning |\n|---|---|"]
    for parameter in command.params:
        heads, text = parameter.get_help_record(context)
        lines.append(f"| `{_cell(heads)}` | {_cell(text)} |")
    return [*lines, ""]


def _paragraphs(text: str) -> str:
    """Return a help text with a line for each paragraph."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("``", "`") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


def python_page() -> str:
    """Return docs/python.md, as text that ends in a newline."""
    lines = [PYTHON_HEAD, "## commbench\n"]
    for name in commbench.__all__:
        lines += _object(f"commbench.{name}", getattr(commbench, name))
    lines += ["## The run that load_run returns\n", "| attribute | content |\n|---|---|"]
    lines += [f"| `{name}` | {_first_paragraph(_attribute(name))} |" for name in ATTRIBUTES]
    lines += [
        "\n## commbench.hooks\n",
        (
            "`from commbench.hooks import TopK`; options of each hook:"
            " [columns.md](columns.md#hooks).\n"
        ),
    ]
    for name in hooks.__all__:
        entry = getattr(hooks, name)
        if inspect.isclass(entry) or inspect.isfunction(entry):
            lines += _object(f"commbench.hooks.{name}", entry)
    return "\n".join(lines).rstrip() + "\n"


def _attribute(name: str) -> str:
    entry = inspect.getattr_static(Run, name, None)
    if entry is not None and inspect.getdoc(entry):
        return inspect.getdoc(entry) or ""
    raise ValueError(f"commbench.results.Run.{name} has no docstring; write one.")


def docstrings_of_fields(cls: type[Any]) -> dict[str, str]:
    """What the text under each field of a class and of its bases says, in one line."""
    module = inspect.getmodule(cls)
    statements = ast.parse(inspect.getsource(module)).body if module else []
    (node,) = (
        each for each in statements if isinstance(each, ast.ClassDef) and each.name == cls.__name__
    )
    bases = [
        operator.attrgetter(ast.unparse(base))(module)
        for base in node.bases
        if isinstance(base, (ast.Name, ast.Attribute))
    ]
    inherited = [
        docstrings_of_fields(base) for base in bases if base.__module__.startswith("commbench")
    ]
    own = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    return {name: text for texts in (*inherited, own) for name, text in texts.items()}


def _first_paragraph(text: str) -> str:
    return _cell(text.split("\n\n", maxsplit=1)[0].replace("``", "`"))


def _object(name: str, entry: Any) -> list[str]:  # noqa: ANN401 - a class or a function
    """Return the heading, the signature and the docstring of a class or function, and a table of a
    class's methods.
    """
    lines = [f"### {name}\n"]
    if inspect.isclass(entry) and dataclasses.is_dataclass(entry):
        texts = docstrings_of_fields(entry)
        for each in dataclasses.fields(entry):
            if "spellings" in each.metadata:  # an option, see commbench.fields
                spelling = max(each.metadata["spellings"], key=len)
                about = [each.metadata["about"], texts.get(each.name, "")]
                texts[each.name] = f"As ``{spelling}``. {' '.join(about).strip()}"
        fields = [each for each in dataclasses.fields(entry) if each.name in texts]
    else:
        fields = []
    is_hook = inspect.isclass(entry) and issubclass(entry, hooks.HookSpec)
    if is_hook or not fields:
        lines += [f"```python\n{name}{_signature(entry)}\n```\n"]
    lines += _docstring(inspect.getdoc(entry) or "")
    if fields:
        lines += ["| field | meaning |\n|---|---|"]
        lines += [
            f"| `{each.name}` | {_cell(texts[each.name].replace('``', '`'))} |" for each in fields
        ]
        lines += [""]
    if is_hook or (inspect.isclass(entry) and not dataclasses.is_dataclass(entry)):
        methods = [
            (method, function)
            for method, function in inspect.getmembers(entry, inspect.isfunction)
            if not method.startswith("_") and function.__doc__
        ]
        if methods:
            lines += ["| method | what it does |\n|---|---|"]
            lines += [
                f"| `{method}{_short(function)}` |"
                f" {_first_paragraph(inspect.getdoc(function) or '')} |"
                for method, function in methods
            ]
            lines += [""]
    return lines


def _signature(entry: Any) -> str:  # noqa: ANN401 - as above
    """Return the parameters with their defaults, without types, one a line if they are many."""
    parameters = [
        str(each.replace(annotation=inspect.Parameter.empty)) for each in _parameters(entry)
    ]
    kinds = [each.kind for each in _parameters(entry)]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    text = ", ".join(parameters)
    return (
        f"({text})"
        if len(text) < WIDTH
        else "(\n" + "".join(f"    {each},\n" for each in parameters) + ")"
    )


def _short(entry: Any) -> str:  # noqa: ANN401 - as above
    return f"({', '.join(each.name for each in _parameters(entry) if each.name != 'self')})"


def _parameters(entry: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - as above
    return list(inspect.signature(entry).parameters.values())


#: A section of a docstring: its heading, and its lines, which are indented.
_SECTION = re.compile(r"^(Args|Raises|Returns|Yields):\n((?:    .*\n?|\n)+)", re.MULTILINE)
#: A literal block of a docstring, which is an example.
_LITERAL = re.compile(r"^::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)


def _docstring(text: str) -> list[str]:
    """Return a docstring as Markdown: its sections as lists, its literal blocks as code."""

    def section(match: re.Match[str]) -> str:
        items = re.split(r"\n(?=\S)", textwrap.dedent(match[2]).strip())
        return "\n".join(
            [
                f"{match[1]}:\n",
                *(
                    f"- `{n}`: {' '.join(rest.split())}"
                    for n, _, rest in (i.partition(":") for i in items)
                ),
                "\n",
            ]
        )

    text = _LITERAL.sub(
        lambda match: f"```python\n{inspect.cleandoc(match[1])}\n```\n\n",
        text.replace("``", "`") + "\n",
    )
    return [_SECTION.sub(section, text).rstrip() + "\n"]
