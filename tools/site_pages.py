"""A hook of MkDocs: files of the repository that are pages of the site as they are, at the same place.

So their links to each other lead where they lead in the repository.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ["[A-Z]*.md", "benches/results/*", "model/README.md"]
# The site has a page of its own to start with.
README = "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name != README:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have what leads to a page in `docs/` lead there on the site, and code in tables mean what it does elsewhere.

    On the site `docs/` is the top. In a table a bar in code has to be escaped for others, and must not be here.
    """
    unescaped = re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)
    return unescaped.replace("](docs/", "](")
