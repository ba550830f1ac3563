"""`vivace completion bash|zsh|fish`: scripts that let a shell ask which words may come next, and the answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from vivace.cli.commands import COMMANDS, Command, Family, load
from vivace.cli.help import value_name
from vivace.cli.parser import Parser, UsageError, whole

FILES = ":files"  # instead of a word: the names of files
BREAKS = ("=", ":")  # what bash takes for words of their own

Words = list[tuple[str, str]]  # each with what it means

SCRIPTS = {
    "bash": """\
_vivace() {
    local word=${COMP_WORDS[COMP_CWORD]} line IFS=$'\\n'
    [[ $word == [=:] ]] && word=
    COMPREPLY=()
    for line in $("$1" completion words --bash $((COMP_CWORD - 1)) -- "${COMP_WORDS[@]:1}" 2> /dev/null); do
        if [[ $line == :files ]]; then
            compopt -o filenames 2> /dev/null
            COMPREPLY+=($(compgen -f -- "$word"))
        else
            COMPREPLY+=("${line%%$'\\t'*}")
        fi
    done
}
complete -F _vivace vivace
""",
    "zsh": """\
#compdef vivace
_vivace() {
    local -a found
    local line files=
    for line in ${(f)"$("${words[1]}" completion words $((CURRENT - 2)) -- "${(@)words[2,-1]}" 2> /dev/null)"}; do
        if [[ $line == :files ]]; then
            files=1
        else
            found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
        fi
    done
    (( $#found )) && _describe vivace found
    [[ -n $files ]] && { compset -P '--*='; _files }
}
(( $+functions[compdef] )) && compdef _vivace vivace
""",
    "fish": """\
function __vivace_words
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    for line in (command $words[1] completion words (math (count $words) - 1) -- $words[2..-1] "$word" 2> /dev/null)
        if test "$line" = :files
            __fish_complete_path "$word"
        else
            echo $line
        end
    end
end
complete -c vivace -f -a '(__vivace_words)'
""",
}
PLACES = {
    "bash": 'put `eval "$(vivace completion bash)"` into ~/.bashrc',
    "zsh": 'put `eval "$(vivace completion zsh)"` into ~/.zshrc, below compinit',
    "fish": "vivace completion fish > ~/.config/fish/completions/vivace.fish",
}


def known() -> Iterable[str]:
    """Names of models that are here, and aliases."""
    from vivace.model.shelf import listing

    return [model.name for model in listing() if model.path or model.partial or model.kind == "alias"]


def installable() -> Iterable[str]:
    """Names of models that can be fetched without knowing the hub."""
    from vivace.model.catalogue import entries

    return [entry.name for entry in entries()]


def candidates(words: Sequence[str], index: int) -> Words:
    """What words[index] may become; `words` come after `vivace`."""
    words = [*words, ""][: index + 1]
    *before, current = words
    return [(word, about) for word, about in _all(before, current) if word == FILES or word.startswith(current)]


def bash_candidates(words: Sequence[str], index: int) -> Words:
    """The same for bash, which splits words at BREAKS and replaces only the last piece."""
    joined: list[str] = []
    glue = False
    for word in [*words, ""][: index + 1]:
        breaks = word in BREAKS
        if joined and (glue or breaks):
            joined[-1] += word
        else:
            joined.append(word)
        glue = breaks
    last = [*words, ""][index]
    lead = len(joined[-1]) - (0 if last in BREAKS else len(last))
    found = candidates(joined, len(joined) - 1)
    return [(word if word == FILES else word[lead:], about) for word, about in found]


def _all(before: list[str], current: str) -> Words:
    if before[:1] == ["help"]:
        before = before[1:]
        current = ""  # no options
    elif not before:
        return [*COMMANDS.items(), ("help", "what a command does"), ("--help", ""), ("--version", "")]
    if not before:
        return list(COMMANDS.items())
    try:
        command, rest = load(before[0]), before[1:]
        if isinstance(command, Family):
            if not rest and not (current.startswith("-") and command.default):
                return [(name, action.what) for name, action in command.actions.items()]
            command, rest = command.find(rest)
    except UsageError:
        return []
    return _of_command(command, rest, current)


def _of_command(command: Command, rest: list[str], current: str) -> Words:
    parser = command.parser()
    named = {name: action for action in parser._actions for name in action.option_strings}
    last = named.get(rest[-1]) if rest else None
    if last is not None and last.nargs != 0:
        return _values(parser, last)
    flag, equals, _ = current.partition("=")
    if equals and flag in named:
        return [(f"{flag}={word}", about) for word, about in _values(parser, named[flag]) if word != FILES] or [
            (FILES, "")
        ]
    if current.startswith("-"):
        return [(name, action.help or "") for name, action in named.items() if action.help is not argparse.SUPPRESS]
    words = 0
    for i, word in enumerate(rest):
        of_option = named.get(rest[i - 1]) if i else None
        words += not word.startswith("-") and (of_option is None or of_option.nargs == 0)
    places = parser._positionals._group_actions
    places = [action for action in places if not action.option_strings]
    return _values(parser, places[words]) if words < len(places) else []


def _values(parser: Parser, action: argparse.Action) -> Words:
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    dest = "model" if action.dest == "MODEL" else action.dest
    if dest in parser.suggest:
        return [(word, "") for word in parser.suggest[dest]()]
    if dest == "model":
        return [*((word, "") for word in known()), (FILES, "")]
    return [(FILES, "")] if value_name(action) == "FILE" else []


def _script_command(shell: str) -> Command:
    def parser() -> Parser:
        return Parser(
            f"completion {shell}", f"Print what {shell} needs: {PLACES[shell]}.", f"vivace completion {shell}"
        )

    def run(_: argparse.Namespace) -> int:
        print(SCRIPTS[shell], end="")
        return 0

    return Command(parser, run, PLACES[shell])


def _words_parser() -> Parser:
    about = "Print which words may come next, each with what it means; :files stands for names of files."
    made = Parser("completion words", about, "vivace completion words 1 -- run smol")
    made.add_argument("index", metavar="INDEX", type=whole(0), help="which of the words is being typed, from 0")
    made.add_argument("words", metavar="WORD", nargs="*", help="what stands after `vivace`")
    made.settings.add_argument("--bash", action="store_true", help="the words are split at = and :")
    return made


def _words(args: argparse.Namespace) -> int:
    found = (bash_candidates if args.bash else candidates)(args.words, args.index)
    print("".join(f"{word}\t{about}\n" if about else f"{word}\n" for word, about in found), end="")
    return 0


FAMILY = Family(
    "completion",
    "Let a shell complete commands, options, their values and the names of models.",
    {shell: _script_command(shell) for shell in SCRIPTS}
    | {"words": Command(_words_parser, _words, "what the scripts ask: which words may come next")},
    example='eval "$(vivace completion bash)"',
)
