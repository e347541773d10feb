"""Ask every address that the book names whether it is still there: `python tests/links.py`.

Needs the network, so no test of the book runs it; the weekly run does. A server that keeps
programs out (401, 403, 429) or is down for now (5xx, no answer) is listed, and is no failure.
"""

import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]}]+")
GONE = (404, 410)
TRIES = 2


def addresses() -> list[str]:
    """Return the addresses of the bibliography and of all texts, each once."""
    bib = (ROOT / "book/references.bib").read_text(encoding="utf-8")
    found = {f"https://doi.org/{doi}" for doi in re.findall(r"\bdoi\s*=\s*\{([^}]+)\}", bib)}
    for number in re.findall(r"\beprint\s*=\s*\{([^}]+)\}", bib):
        found.add(f"https://arxiv.org/abs/{number}")
    texts = [
        bib,
        *(path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *ROOT.glob("book/*.md")]),
    ]
    for text in texts:
        found |= {match.rstrip(".,;:") for match in ADDRESS.findall(text)}
    return sorted(address for address in found if "://localhost" not in address)


def answer(address: str) -> str:
    """Return "ok", "gone", or what else the server said."""
    request = urllib.request.Request(address, headers={"User-Agent": "normbook link check"})
    said = ""
    for again in range(TRIES):
        time.sleep(1 + 10 * again)
        try:
            with urllib.request.urlopen(request, timeout=30):
                return "ok"
        except urllib.error.HTTPError as error:
            if error.code in GONE:
                return "gone"
            said = f"answers {error.code}"
        except OSError as error:
            said = f"does not answer ({error})"
    return said


def main() -> int:
    """Ask all, print what is not well, and fail if something is gone."""
    answers = {address: answer(address) for address in addresses()}
    for address, said in answers.items():
        if said != "ok":
            print(f"{said}: {address}", flush=True)
    gone = sum(said == "gone" for said in answers.values())
    print(f"{len(answers)} addresses asked, {gone} gone")
    return int(gone > 0)


if __name__ == "__main__":
    sys.exit(main())
