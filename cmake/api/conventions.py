#!/usr/bin/python3
"""conventions.py HEADER: the filter of Doxygen (cmake/api/Doxyfile.in).

What holds for every class or for every operation is described here, once. A comment on several members describes each.
Every line stays on its line, so that warnings name the right one.
"""
import re
import sys

NONE = re.compile(r"= (delete|default);|^ *(virtual |explicit )?~\w+\(\)( noexcept)?( override| \{\}|;)|"
                  r"^ *(?P<own>\w+)\(((?P=own)&&|const (?P=own)&)[^)]*\)( noexcept)?;|^ *\w+& operator=\(.*\)( noexcept)?;")  # copies and moves, too
SAME = [  # (a line, what is said of it)
    (r"static constexpr const char ?\* ?name = ", "Its name, in errors and profiles; slope_name: that of its derivative."),
    (r"static constexpr const char\* task = ", "The task of a configuration without task.name."),
    (r"struct Options \{", "The keys of its section of a configuration."),
    (r"explicit operator bool\(\)", "Whether there is one: a value-initialised object is none."),
    (r"(const )?[\w:]+\*? ?(begin|end)\(\)", "For range-based loops."),
    (r"(explicit )?\w+\((nn::)?Module& (parent|owner), std::string_view (name|local_name)", "Registers itself in its parent under this name. UsageError if the name is empty or taken."),
    (r"(std::optional<)?Parameter>? [a-z]", "Registered under the name of this member, as in PyTorch."),
    (r"double flops\(\) const", "Floating-point operations, two for each multiply-add."),
    (r"std::string text\(\) const", "The sizes, for errors and profiles."),
    (r"Cost cost\(\) const", "What it computes and moves."),
    (r"static constexpr int inputs = ", "How many tensors it reads."),
    (r"static constexpr int states = ", "How many tensors of state it has for a parameter."),
    (r"static constexpr bool broadcasts = ", "Whether its inputs are broadcast by NumPy's rules."),
    (r"static constexpr bool slope_by_value = ", "Whether slope() takes the value, not the input."),
    (r"static (constexpr )?void operands\(", "Calls each() with all operands: their names, tensors and roles."),
    (r"void check\(\) const", "UsageError with the operation's name and the shapes that do not fit."),
    (r"(\w+ )?sizes\(\) const", "What the shapes mean. UsageError with the operation's name and the shapes that do not fit."),
    (r"(static )?(constexpr )?LOCKSTEP_ON_ANY_DEVICE ", "The formula, of one element."),
    (r"static std::vector<.*Option<Options>> options\(\)", "The members, as keys of a configuration."),
    (r"(virtual )?Var forward\(", "The output for an input of the shape that the class describes. UsageError for another one."),
]
VALUE = r"(?: = (?:\{[^{}]*\}|[^,;{}]*)|\{[^{}]*\})?"
MEMBER = re.compile(rf"( +)((?:static |constexpr |inline |const )*[\w:]+(?:<[^;()]*>)?)\*? (\*?\w+{VALUE}(?:, \*?\w+{VALUE})*);( *///<.*)?$")


def main():
    path = sys.argv[1]
    in_operations = "/lockstep/ops/" in path
    comment = ""  # the block above
    for line in open(path):
        line = line.rstrip("\n")
        if NONE.search(line):
            print()
            continue
        if line.lstrip().startswith("///"):
            comment += line.lstrip()[3:]
            print(line)
            continue
        said = next((text for pattern, text in SAME if re.match(r" *(template <[^>]*> )?" + pattern, line)), "")
        member = None if said and "," not in line else MEMBER.match(line)
        if member and member[2].split()[0] not in ("return", "using", "friend", "typename"):
            said = (member[4] or "").replace("///<", "").strip() or comment.strip() or said
            if not said and in_operations:  # what stands above it says the shapes
                said = "An operand or attribute; its struct describes it."
            says = f"/** {said} */ " if said else ""
            names = re.findall(rf"\*?\w+{VALUE}(?=, |$)", member[3])
            first, rest = names[0], names[1:]
            out = f"{'' if comment else says}{member[2]} {first}; " + " ".join(f"{says}{member[2]} {name};" for name in rest)
            print(out)
            comment = ""
            continue
        if said and not comment and "///" not in line:
            print(f"/** {said} */ {line.lstrip()}")
        else:
            print(line)
        comment = ""


if __name__ == "__main__":
    main()
