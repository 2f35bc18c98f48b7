"""Scrapes a site, ten pages at a time, until Ctrl-C: python examples/scraper.py [DIR [URL]].

Each page is a job, and the links in it are the next ones. Pages are kept in DIR/pages (./scraped unless you say so).
Started again, also after a crash, it goes on where it was. `python -m http.server` in some directory makes a site to
try it with, at http://127.0.0.1:8000/, which is URL unless you say so.
"""

import argparse
import asyncio
import logging
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urldefrag, urljoin, urlsplit

import httpx
from pacchettino import Backoff, Fail, KeepPolicy, Retry
from pacchettino.aio import AsyncPacchettino


async def main(directory: Path, start: str) -> None:
    pages = directory / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    queue = AsyncPacchettino(
        directory / "queue",
        KeepPolicy.FAILED | KeepPolicy.INTERRUPTED,
        max_attempts=3,
        retry_delay=Backoff(1),
        retry_on=(httpx.TransportError,),  # nobody answers, or not in time
        interrupted_attempts=3,  # a page that was being scraped when we died can be scraped once more
        fifo=True,
    )
    seen = {start}

    async with httpx.AsyncClient(follow_redirects=True) as client:

        @queue.on_data_received
        async def scrape(id: str, data: bytes) -> None:
            url = data.decode()
            page = pages / quote(url, safe="")
            if page.exists():  # `seen` is forgotten with the process
                return
            answer = await client.get(url)
            reason = f"{url}: {answer.status_code} {answer.reason_phrase}"
            if answer.status_code == 429 or answer.is_server_error:
                raise Retry(reason=reason)
            if not answer.is_success:
                raise Fail(reason)
            if answer.headers.get("Content-Type", "").startswith("text/html"):
                for link in Links(answer).found:
                    if link not in seen and urlsplit(link).netloc == urlsplit(start).netloc:
                        seen.add(link)
                        await queue.send_data(link)
            # Last, and by a rename: a page that is there is whole, and its links are in the queue.
            half = pages / f"{id}.half"
            half.write_bytes(answer.content)
            half.replace(page)
            print(url, flush=True)

        await queue.send_data(start)
        await queue.work(concurrency=10)


class Links(HTMLParser):
    """The links in a page."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base = str(page.url)
        self.feed(page.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (link := dict(attributes).get("href")):
            self.found.append(urldefrag(urljoin(self.base, link)).url)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", default="scraped", type=Path)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000/")
    options = parser.parse_args()
    asyncio.run(main(options.directory, options.url))
