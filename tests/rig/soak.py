"""`make soak`: run seeds for a given time, print what they came to, stop at the first that breaks a promise."""

import argparse
import itertools
import sys
import time

from tests.rig.run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print its report")
    parser.add_argument("--steps", type=int, help="how long each history is (30 with --seed, else 60)")
    parser.add_argument("--forgetting", action="store_true", help="people also forget nodes by force")
    options = parser.parse_args()
    if options.seed is not None:
        print(simulate(options.seed, steps=options.steps or 30, forgetting=options.forgetting))
        return 0
    steps = options.steps or 60
    began, seeds, events, simulated_s = time.monotonic(), 0, 0, 0.0
    for seed in itertools.count(options.first):
        spent = time.monotonic() - began
        if spent > options.minutes * 60:
            break
        try:
            report = simulate(seed, steps=steps, forgetting=options.forgetting or seed % 5 == 0)
        except BaseException:
            flag = " --forgetting" if options.forgetting or seed % 5 == 0 else ""
            again = f"python -m tests.rig.soak --seed {seed} --steps {steps}{flag}"
            print(f"seed {seed} broke a promise: {again}", file=sys.stderr)
            raise
        seeds, events, simulated_s = seeds + 1, events + report.events, simulated_s + report.simulated_s
        if seeds % 50 == 0:
            print(f"{seeds} seeds, {simulated_s / 3600:.1f} simulated hours, {events / spent:.0f} events/s", flush=True)
    hours = simulated_s / 3600
    print(f"{seeds} seeds from {options.first} kept every promise: {hours:.1f} simulated hours, {events} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
