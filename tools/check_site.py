"""Looks at a built site: each link leads somewhere, and no page has a browser fetch anything from elsewhere.

MkDocs checks what was written in Markdown; this checks what became of it, the HTML of templates, docstrings and rustdoc
included.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches without being asked, by tag; `a` is for a person to follow.
FETCHED = {"audio", "embed", "form", "frame", "iframe", "image", "img", "input", "link", "object", "script", "source"}
FETCHED |= {"track", "use", "video"}
LINKS = {"href", "src", "data", "action", "srcset", "xlink:href"}


class Page(HTMLParser):
    """What a page refers to, and what of it can be referred to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what it refers to. A canonical address is told to search engines, and not fetched."""
        values = dict(attributes)
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        for name in LINKS & values.keys():
            link = values[name] or ""
            if urlsplit(link).scheme in {"data", "javascript", "mailto"} or values.get("rel") == "canonical":
                continue
            self.links.add(link)
            if tag in FETCHED:
                self.fetched.add(link)


def is_foreign(link: str) -> bool:
    """Whether it leads out of the site."""
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def faults(site: Path) -> list[str]:
    """Tell what is wrong with a site, a line for each."""
    # rustdoc writes its sources' pages with links that only its own scripts make, and is checked by rustdoc itself.
    pages = {path: Page(path) for path in site.rglob("*.html") if "rust" not in path.relative_to(site).parts}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site).as_posix()
        found += [f"{where}: fetches {link}" for link in sorted(page.fetched) if is_foreign(link)]
        for link in sorted(link for link in page.links if not is_foreign(link)):
            parts = urlsplit(link)
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{where}: {link} leads to no place on its page")
    for sheet in [*site.rglob("*.css"), *site.rglob("*.html")]:
        fetched = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.relative_to(site).as_posix()}: fetches {link}" for link in fetched]
    return found


if __name__ == "__main__":
    told = faults(Path(sys.argv[1]).resolve())
    print("\n".join(told) or "each link leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(told))
