"""``vllm-xyserve doctor``: what is installed, what was chosen, and what is in the way.

Standard library only, apart from the child processes: it has to work where vLLM and torch are
missing or broken. `collect` gathers `facts`, `problems` judges them, `render` shows both.
"""

from __future__ import annotations

import json
import sys

from vllm_xyserve.doctor import collect, problems, render

# Importing vLLM takes 5 s of CPU time, and took 75 s by the clock on two cores at a load of 14, as
# where a server runs already. Too short a limit reports a healthy installation as broken.
TIMEOUT_S = 120.0


def run(*, as_json: bool = False, timeout: float = TIMEOUT_S) -> int:
    """Print the report; 0 if there is no problem, else 1.

    Args:
        as_json: print one JSON object instead of text.
        timeout: seconds that each child process may take.
    """
    if sys.stderr.isatty():
        print("importing torch and vLLM in child processes ...", file=sys.stderr)
    facts = collect.collect(timeout=timeout)
    verdict = problems.judge(facts)
    if as_json:
        print(json.dumps(render.as_json(facts, verdict), indent=2))
    else:
        print(render.as_text(facts, verdict))
    return 0 if verdict.ok else 1
