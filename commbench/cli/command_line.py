"""How a command gets its options, and which of them exclude each other."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_origin, get_type_hints

import typer

from commbench.errors import InputError

#: The options and arguments that a person typed, each by its longest spelling: ``--ranks``,
#: ``SUITE``.
Given: TypeAlias = Collection[str]


def takes_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command of which one parameter can stand for several options.

    - If its type is a dataclass, the options are those of its fields (`commbench.fields.option`).
    - ``Annotated[Axes, Sweep]`` is the fields of `Sweep` that have a value, by name. Names behind
      the class choose fields.
    - ``given: Given`` is what was typed.

    The help lists the options in the order of the parameters.
    """
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    takes_given = parameters.pop("given", None) is not None
    line = {"context": inspect.Parameter("context", _KEYWORD, annotation=typer.Context)}
    groups = {}
    for name, parameter in parameters.items():
        group = _Group.of(parameter.annotation)
        if group is None:
            line[name] = parameter.replace(kind=_KEYWORD)
        else:
            groups[name] = group
            line.update(group.options())

    @functools.wraps(command)
    def command_line(**values: Any) -> int:
        if takes_given:
            values["given"] = given_options(values["context"])
        if "context" not in parameters:
            del values["context"]
        for name, group in groups.items():
            own = {each.name: values.pop(each.name) for each in group.fields}
            values[name] = group.read(own)
        return command(**values)

    signature = inspect.Signature(list(line.values()))
    command_line.__signature__ = signature  # type: ignore[attr-defined]  # documented override
    command_line.__annotations__ = {name: each.annotation for name, each in line.items()}
    return command_line


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class _Group:
    """The options that one parameter of a command stands for."""

    made: type
    """The dataclass."""
    fields: Iterable[dataclasses.Field[Any]]
    is_whole: bool
    """Whether an instance is made; otherwise only fields that have a value count."""

    @classmethod
    def of(cls, annotation: Any) -> _Group | None:
        """Return the group of an annotation; None if it is one option."""
        made, names = annotation, []
        if get_origin(annotation) is Annotated:
            made, *names = annotation.__metadata__
        if not isinstance(made, type) or not dataclasses.is_dataclass(made):
            return None
        fields = []
        for each in dataclasses.fields(made):
            if each.metadata and (not names or each.name in names):
                fields.append(each)
        return cls(made, fields, made is annotation)

    def options(self) -> dict[str, inspect.Parameter]:
        """Return the options as parameters, as typer takes them."""
        kinds = get_type_hints(self.made)
        options = {}
        for each in self.fields:
            kind, default = kinds[each.name], each.metadata["text"]
            parser = None  # `read` reads it, and states the option where it fails
            if self.is_whole:
                parser = each.metadata["read"]
                if default is None:
                    default = each.default
            else:
                kind = each.metadata["kind"] | None
            shown = typer.Option(
                default,
                *each.metadata["spellings"],
                metavar=each.metadata["metavar"],
                help=each.metadata["about"],
                parser=parser,
            )
            options[each.name] = inspect.Parameter(
                each.name, _KEYWORD, default=shown, annotation=kind
            )
        return options

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the parameter.

        Raises:
            InputError: a text is not understood; the sentence begins with the option.
        """
        if self.is_whole:
            return self.made(**values)
        axes = {}
        for each in self.fields:
            value, read = values[each.name], each.metadata["read"]
            if value is None:
                continue
            if read is not None:
                try:
                    value = read(value)
                except InputError as error:
                    spelling = max(each.metadata["spellings"], key=len)
                    raise InputError(f"{spelling}: {error}") from error
            axes[each.name] = value
        return axes


def given_options(context: typer.Context) -> Given:
    """Return what was typed on the command line."""
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if str(source).endswith("COMMANDLINE"):
            spelling = max(parameter.opts, key=len)
            given.append(spelling if spelling.startswith("-") else spelling.upper())
    return given


def refuse(given: Given, option: str, others: Iterable[str], why: str) -> None:
    """Refuse options that do not go with another one.

    Args:
        given: what was typed.
        option: the option, or the argument.
        others: what does not go with it.
        why: a clause behind the option.

    Raises:
        InputError: both were typed.
    """
    for other in others:
        if option in given and other in given:
            raise InputError(f"{other} was given with {option}, {why}; leave one of them out.")


def check_needed(given: Given, option: str, needed: str) -> None:
    """Check that an option was given with the one that it needs.

    Raises:
        InputError: it was given alone.
    """
    if option in given and needed not in given:
        raise InputError(f"{option} works only with {needed}; add it, or leave {option} out.")
