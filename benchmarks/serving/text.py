"""Real text as token ids, from what every Python installation carries.

Prose is the language reference in the standard library's `pydoc_data`, code is the source of the
standard library. No prompt repeats a passage unless the workload shares it on purpose: draws follow
one another through the documents, whose order the seed decides, and a text that is used up is an
error. Random ids or repeated filler would be unfair: a cache, or a kernel whose speed depends on
the values, sees other data than in service.
"""

from __future__ import annotations

import random
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Literal

Kind = Literal["prose", "code"]

MAX_CODE_BYTES = 3 << 20
# Tables of characters and of documentation are no source text; tests repeat themselves.
_LEFT_OUT = (
    "encodings",
    "pydoc_data",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
)


def documents(kind: Kind) -> list[str]:
    """The documents of a kind, in alphabetical order of their names.

    Raises:
        FileNotFoundError: this Python came without them.
    """
    found = _prose() if kind == "prose" else _code()
    if sum(map(len, found)) < 200_000:
        raise FileNotFoundError(
            f"the benchmark takes its {kind} from Python's standard library, and this Python has "
            f"too little of it ({sum(map(len, found)):,} characters); use one with the full library"
        )
    return found


def _prose() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return [topics[name] for name in sorted(topics)]


def _code() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    found, total = [], 0
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root).parts
        if set(inner) & set(_LEFT_OUT) or path.stat().st_size < 2000:
            continue
        found.append(path.read_text(encoding="utf-8", errors="replace"))
        total += len(found[-1])
        if total > MAX_CODE_BYTES:
            break
    return found


class Text:
    """Passages of real text: a draw of n is the next n token ids.

    Args:
        tokenizer_file: ``tokenizer.json`` of the model.
        kind: prose or code.
        seed: order of the documents.
    """

    def __init__(self, tokenizer_file: Path, kind: Kind, seed: int) -> None:
        self._rng = random.Random(seed)
        tokenized = list(_tokenized(tokenizer_file, kind))
        self._rng.shuffle(tokenized)
        self._tokens = [token for document in tokenized for token in document]
        self._next = 0
        self._kind = kind

    def draw(self, num_tokens: int) -> tuple[int, ...]:
        """The next ``num_tokens`` ids.

        Raises:
            ValueError: fewer than one token, or more than the text still has.
        """
        left = len(self._tokens) - self._next
        if not 1 <= num_tokens <= left:
            raise ValueError(
                f"cannot draw {num_tokens} tokens of {self._kind}: at least 1 and at most the "
                f"{left:,} that are left of {len(self._tokens):,}; ask for fewer requests"
            )
        self._next += num_tokens
        return tuple(self._tokens[self._next - num_tokens : self._next])

    def len_between(self, least: int, most: int) -> int:
        """A length, both ends included."""
        return self._rng.randint(least, most)

    def shuffled(self, count: int) -> list[int]:
        """``0 .. count - 1`` in random order."""
        return self._rng.sample(range(count), count)


@lru_cache(maxsize=4)
def _tokenized(tokenizer_file: Path, kind: Kind) -> tuple[tuple[int, ...], ...]:
    from tokenizers import Tokenizer

    if not tokenizer_file.is_file():
        raise FileNotFoundError(f"{tokenizer_file}: the benchmark needs the model's tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    encoded = tokenizer.encode_batch(documents(kind), add_special_tokens=False)
    return tuple(tuple(item.ids) for item in encoded)
