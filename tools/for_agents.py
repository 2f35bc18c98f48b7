"""Makes what is for agents out of what is there: docs/SKILL.md and docs/llms-full.txt.

`make for-agents` writes them, and tests/test_docs.py compares.
"""

import argparse
import re
from pathlib import Path

import griffe
from pacchettino._command import parsers

INTERNAL = re.compile(r": _")
"""A type that is the library's own: who has such an argument is not made by users."""

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

FRONT_MATTER = """---
name: pacchettino
description: >-
  Write or mend Python programs that use the job queue pacchettino: send data and files to a queue in a directory,
  workers with retries, backoff and a clean stop, looking at failed jobs. Use it whenever code imports pacchettino, or
  a queue on one machine without a server is wanted.
license: MIT
---

"""

PREFACE = """# pacchettino: all calls

Made from the signatures and docstrings. What is easiest to get wrong is in AGENTS.md, which is also SKILL.md.
"""


def skill() -> str:
    """AGENTS.md as a skill."""
    return FRONT_MATTER + (DOCS / "AGENTS.md").read_text(encoding="utf-8")


def public_modules() -> list[griffe.Module]:
    """The package, then what of it is imported by its own name."""
    package = griffe.load("pacchettino", search_paths=[ROOT / "python"])
    assert isinstance(package, griffe.Module)
    return [package, *(package.modules[name] for name in sorted(package.modules) if not name.startswith("_"))]


def call(function: griffe.Function) -> str:
    """A function's signature, with the types of what it takes and gives, as Python would have it."""
    arguments = []
    star = False
    for parameter in function.parameters:
        if parameter.name == "self":
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.var_positional:
            star = True
        elif kind is griffe.ParameterKind.keyword_only and not star:
            arguments.append("*")
            star = True
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        type_ = f": {parameter.annotation}" if parameter.annotation is not None else ""
        is_given = parameter.default is not None and not stars
        default = (f" = {parameter.default}" if type_ else f"={parameter.default}") if is_given else ""
        arguments.append(f"{stars}{parameter.name}{type_}{default}")
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"{function.name}({', '.join(arguments)}){returns}"


def told(thing: griffe.Object, indent: str = "") -> list[str]:
    """Its docstring, indented."""
    text = thing.docstring.value if thing.docstring else ""
    return [f"{indent}{line}".rstrip() for line in text.splitlines()]


def target(thing: griffe.Object | griffe.Alias) -> griffe.Object:
    """What a name that was imported stands for."""
    found = thing.final_target if isinstance(thing, griffe.Alias) else thing
    assert isinstance(found, griffe.Object)
    return found


def members(thing: griffe.Class) -> list[griffe.Object]:
    """What of a class is for its users, in the order of the source."""
    found = map(target, thing.members.values())
    public = [member for member in found if not member.name.startswith("_")]
    return sorted(public, key=lambda member: member.lineno or 0)


def class_lines(thing: griffe.Class) -> list[str]:
    """A class with its fields, properties and methods."""
    bases = ", ".join(base for base in map(str, thing.bases) if not base.startswith("_"))
    lines = [f"### class {thing.name}({bases})" if bases else f"### class {thing.name}", ""]
    constructor = thing.members.get("__init__")
    is_made_by_users = isinstance(constructor, griffe.Function) and not INTERNAL.search(call(constructor))
    if is_made_by_users:
        lines += ["```python", call(constructor).replace("__init__", thing.name).removesuffix(" -> None"), "```", ""]
    elif "dataclass" in thing.labels:
        fields = ", ".join(field(member) for member in members(thing) if member.is_attribute)
        lines += ["```python", f"{thing.name}({fields})", "```", ""]
    lines += [*told(thing), ""]
    for member in members(thing):
        if isinstance(member, griffe.Function):
            lines += [f"- `{call(member)}`", *told(member, "  "), ""]
        elif isinstance(member, griffe.Attribute) and not is_alias_of_type(member):
            lines += [f"- `{field(member)}`", *told(member, "  ")]
            lines += [""] if member.docstring else []
    return lines if lines[-1] == "" else [*lines, ""]


def is_alias_of_type(attribute: griffe.Attribute) -> bool:
    """Whether it is only another name, such as `Pacchettino.Status`."""
    return str(attribute.annotation) == "TypeAlias"


def field(attribute: griffe.Object) -> str:
    """A field or property, with its type, and its value if that is one and not what is made of an argument."""
    assert isinstance(attribute, griffe.Attribute)
    type_ = f": {attribute.annotation}" if attribute.annotation is not None else ""
    is_value = attribute.value is not None and "class-attribute" in attribute.labels
    return f"{attribute.name}{type_}" + (f" = {attribute.value}" if is_value else "")


def words(package: griffe.Module) -> list[str]:
    """The names that stand for types in signatures of what is public."""
    lines = ["### Types that signatures name", ""]
    named = "".join("\n".join(module_lines(module)) for module in public_modules())
    for module in package.modules.values():
        for attribute in module.attributes.values():
            if attribute.is_alias or not is_alias_of_type(attribute):
                continue
            if re.search(rf"\b{attribute.name}\b", named) or attribute.name.endswith("Handler"):
                where = f" (of `{module.path}`)" if not module.name.startswith("_") else ""
                said = f": {attribute.docstring.value}" if attribute.docstring else ""
                lines.append(f"- `{attribute.name} = {attribute.value}`{where}{said}")
    return [*lines, ""]


def module_lines(module: griffe.Module) -> list[str]:
    """A module with all that it exports."""
    lines = [f"## {module.path}", "", *told(module), ""]
    # The class that all begins with comes first.
    for name in sorted(map(str, module.exports or ()), key=lambda name: not name.endswith("Pacchettino")):
        thing = target(module.members[name])
        if isinstance(thing, griffe.Class):
            lines += class_lines(thing)
        elif isinstance(thing, griffe.Function):
            lines += [f"### {call(thing)}", "", *told(thing), ""]
    return lines


def usage(parser: argparse.ArgumentParser) -> str:
    """A subcommand with what it needs; argparse's own line is another in each version of Python."""
    if parser.usage is not None:
        return "\n".join(line.strip() for line in parser.usage.splitlines())
    positional = [
        action for action in parser._actions if not action.option_strings and action.help != argparse.SUPPRESS
    ]
    names = [
        {"*": f"[{action.metavar}...]", "?": f"[{action.metavar}]", "+": f"{action.metavar}..."}.get(
            str(action.nargs), str(action.metavar)
        )
        for action in positional
    ]
    return " ".join([parser.prog.split()[0], parser.prog.split()[-1], *names, "[OPTION...]"])


def option(action: argparse.Action) -> str:
    """An option or argument, and what it does."""
    value = "" if action.nargs == 0 else f" {action.metavar or '{' + ','.join(map(str, action.choices or ())) + '}'}"
    name = ", ".join(f"{option}{value}" for option in action.option_strings) or value.strip()
    return f"- `{name}`: {action.help}"


def command_lines() -> list[str]:
    """The command, with all that its subcommands take."""
    parser, subcommands = parsers()
    lines = ["## The command pacchettino", "", f"{parser.description}", "", "```text", f"{parser.epilog}", "```", ""]
    for name, subcommand in subcommands.items():
        lines += [
            f"### pacchettino {name}",
            "",
            "```text",
            usage(subcommand),
            "```",
            "",
            f"{subcommand.description}",
            "",
        ]
        told = [action for action in subcommand._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
        lines += [*map(option, told), ""]
        if subcommand.epilog:
            lines += ["```text", subcommand.epilog.strip("\n"), "```", ""]
    return lines


def everything() -> str:
    """The whole API as one text."""
    modules = public_modules()
    lines = [line for module in modules for line in module_lines(module)] + words(modules[0]) + command_lines()
    return PREFACE + "\n" + "\n".join(lines).rstrip() + "\n"


MADE = {"SKILL.md": skill, "llms-full.txt": everything}

if __name__ == "__main__":
    for name, make in MADE.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
