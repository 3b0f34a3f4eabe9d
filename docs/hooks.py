"""What MkDocs does beside its plugins: links that lead out of docs/ become links to the repository.

On GitHub a page may link to any file of the repository. The site holds only docs/, so that such a
link is rewritten to the file's address in the repository (``repo_url``), or to its plain name if
the site is built without one.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Rewrite the links of one page; stop if one of them names no file."""
    root = Path(config["config_file_path"]).parent
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def rewrite(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(f"{folder}/{target}")
        if path.startswith("docs/"):
            return link[0]
        if not (root / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {path}, which does not exist")
        if config["repo_url"]:
            return f"[{text}]({config['repo_url']}/blob/main/{path}{anchor})"
        return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"

    return LINK.sub(rewrite, markdown)
