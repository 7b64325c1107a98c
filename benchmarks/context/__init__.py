"""Replays recorded sessions through context strategies: what each costs, breaks, forgets and takes.

``python -m benchmarks.context [SESSION.jsonl …]``; see ``sessions`` for the format.
"""
