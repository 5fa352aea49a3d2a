"""A batch with different parameters per request, and a chat as a stream."""

from __future__ import annotations

import argparse
from pathlib import Path

from dspark_runtime import LLM, SamplingParams, SpeculativeParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder made by build_engines.py")
    args = parser.parse_args()

    with LLM(args.bundle) as llm:
        requests = {
            "The three primary colors are": SamplingParams(temperature=0, max_tokens=24),
            "Once upon a time": SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=24),
            "def square(x):": SamplingParams(
                temperature=0, max_tokens=24, stop="\n\n", speculative=SpeculativeParams(cutoff="survival:0.3")
            ),
        }
        for output in llm.generate(list(requests), list(requests.values())):
            print(f"{output.prompt!r} -> {output.text!r} ({output.finish_reason})")
            print(f"    {output.stats.accepted_length:.2f} tokens a round, {output.stats.acceptance_rate:.0%} accepted")

        question = [{"role": "user", "content": "What is the capital of Italy?"}]
        for delta in llm.stream(llm.render_chat(question), SamplingParams(temperature=0, max_tokens=32)):
            print(delta, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
