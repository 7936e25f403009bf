"""Chat with a running server through the OpenAI client; the answer appears as it is generated.

make serve                                        # in another terminal
python examples/streaming_chat.py "Tell me a story."
python examples/streaming_chat.py                 # a conversation; empty line or Ctrl-D ends it
"""

from __future__ import annotations

import argparse
import sys

from openai import APIConnectionError, OpenAI
from openai.types.chat import ChatCompletionMessageParam


def stream_answer(
    client: OpenAI, model: str, messages: list[ChatCompletionMessageParam], max_tokens: int
) -> str:
    """Print the answer to messages while it arrives, and return it."""
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=max_tokens, temperature=0, stream=True
    )
    pieces = []
    for chunk in stream:
        piece = chunk.choices[0].delta.content if chunk.choices else None
        if piece:
            print(piece, end="", flush=True)
            pieces.append(piece)
    print()
    return "".join(pieces)


def converse(client: OpenAI, model: str, first: str | None, max_tokens: int) -> None:
    """Answer one prompt, or prompts from standard input, each with the whole conversation."""
    messages: list[ChatCompletionMessageParam] = []
    while True:
        try:
            text = first or input("> ")
        except EOFError:
            return
        if not text.strip():
            return
        messages.append({"role": "user", "content": text})
        answer = stream_answer(client, model, messages, max_tokens)
        messages.append({"role": "assistant", "content": answer})
        if first:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt", nargs="?", help="default: read prompts from standard input")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument("--api-key", default="none", help="if the server was started with one")
    parser.add_argument("--max-tokens", type=int, default=200)
    options = parser.parse_args()

    client = OpenAI(base_url=options.base_url, api_key=options.api_key)
    try:
        model = options.model or client.models.list().data[0].id
        converse(client, model, options.prompt, options.max_tokens)
    except APIConnectionError as error:
        sys.exit(f"no server answers at {options.base_url} ({error}); start one with `make serve`")


if __name__ == "__main__":
    main()
