"""A hook of mkdocs: the site has the same links as the repository.

The documents link to each other and to files of the repository, as a hosting page shows them: README.md, INSTALL,
tests/*/README.md, share/example/*.cpp. The site gets these, too: Markdown as pages, INSTALL as a page, other files as
they are. A link to a file that does not exist, or to a heading that a page does not have, is a warning; with
`mkdocs build --strict` it is an error.
"""
import logging
import os
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.links")
REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
ROOTS = [REPOSITORY / name for name in ("README.md", "INSTALL", "CHANGELOG.md", "tests/README.md")]
SOURCES_ONLY = {".py", ".sh"}  # of docs/figures: scripts that make the figures
API = "api-reference/"  # written by the target `api`
NAMED = re.compile(r"\[([\w./-]+\.md)\]\(([\w./-]+\.md)")  # [cluster.md](cluster.md: a page is called by its title
# [text](target), ![text](target), and src, srcset and href of HTML
LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")([^)\"\s]+)")
converted = tempfile.TemporaryDirectory(prefix="lockstep-site.")


def outside_fences(text):
    """The parts of a document, each with whether it is text (links count) or a fenced block."""
    for part in re.split(r"(^```.*?^```$)", text, flags=re.M | re.S):
        yield part, not part.startswith("```")


def targets(text):
    for part, is_text in outside_fences(text):
        if is_text:
            yield from (match[2] for match in LINK.finditer(part))


def local(target):
    """The path that a link names; empty for an address elsewhere and for a heading of the same page."""
    parts = urlsplit(target)
    return "" if parts.scheme or parts.netloc else unquote(parts.path)


def place_in_site(path):
    """Where a file of the repository is in the site: docs/ is its root."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(REPOSITORY).as_posix()
    return name + ".md" if name == "INSTALL" else name


def install_as_markdown():
    """INSTALL is a plain text with underlined headings and indented commands."""
    lines, fenced = [], False
    for line in (REPOSITORY / "INSTALL").read_text().splitlines():
        indented = line.startswith("  ")
        if indented != fenced:
            lines.append("```text" if indented else "```\n")
            if indented:
                lines.insert(-1, "")
        fenced = indented
        lines.append(line[2:] if indented else line.replace("`", "`"))
    return "\n".join(lines + (["```"] if fenced else [])) + "\n"


def file_of(path, config):
    """The file of the site for a file of the repository that is not in docs/."""
    if path == REPOSITORY / "INSTALL":
        Path(converted.name, "INSTALL.md").write_text(install_as_markdown())
        return File("INSTALL.md", converted.name, config["site_dir"], config["use_directory_urls"])
    return File(place_in_site(path), str(REPOSITORY), config["site_dir"], config["use_directory_urls"])


def on_files(files, config):
    for file in list(files):
        if Path(file.src_path).suffix in SOURCES_ONLY:
            files.remove(file)
    waiting = [Path(file.abs_src_path) for file in files if file.is_documentation_page()] + ROOTS
    known = set(waiting)
    for root in ROOTS:
        files.append(file_of(root, config))
    while waiting:
        path = waiting.pop()
        for target in targets(path.read_text()) if path.suffix == ".md" else ():
            if not local(target) or local(target).startswith(API):
                continue
            linked = Path(os.path.normpath(path.parent / local(target)))
            if linked in known or not linked.is_file() or not linked.is_relative_to(REPOSITORY):
                continue  # one that does not exist is found in on_page_markdown
            known.add(linked)
            waiting.append(linked)
            if not linked.is_relative_to(DOCS):
                files.append(file_of(linked, config))
    return files


def on_page_markdown(markdown, page, config, files):
    source = Path(page.file.abs_src_path)
    if source.name == "INSTALL.md":
        source = REPOSITORY / "INSTALL"

    def titled(match):
        target = source.parent / match[2]
        heading = re.match(r"# (.+)", target.read_text()) if target.is_file() else None
        return f"[{heading[1]}]({match[2]}" if heading else match[0]

    def in_site(match):
        path = local(match[2])
        if not path or path.startswith(API):
            return match[0]
        target = Path(os.path.normpath(source.parent / path))
        if not target.is_file():
            log.warning(f"{source.relative_to(REPOSITORY)}: the link to {match[2]} leads to no file")
            return match[0]
        place = place_in_site(target)
        if match[1] != "](":  # mkdocs leaves HTML as it is
            place = files.get_file_from_path(place).url
        relative = os.path.relpath(place, os.path.dirname(page.file.src_path) or ".")
        return match[1] + relative + match[2][len(urlsplit(match[2]).path):]

    return "".join(LINK.sub(in_site, NAMED.sub(titled, part)) if is_text else part for part, is_text in outside_fences(markdown))


class Page(HTMLParser):
    """The headings and the links of a page."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.names.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def on_post_build(config):
    site = Path(config["site_dir"])
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if not path.is_relative_to(site / API)}
    for path, page in pages.items():
        for link in page.links if path.name != "404.html" else ():  # whose links are absolute
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") and parts.netloc or parts.scheme == "mailto":
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            if target.is_relative_to(site / API):
                continue
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                log.warning(f"{path.relative_to(site)}: the link {link} leads to no file of the site")
            elif parts.fragment and target in pages and parts.fragment not in pages[target].names | {"__codelineno"}:
                log.warning(f"{path.relative_to(site)}: {link}: that page has no such heading")
