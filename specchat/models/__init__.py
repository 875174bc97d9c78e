"""Models by name: which pairs are known, which files this machine has, and what fits what.

Reads headers only, never weights; knows nothing of the app, and only `hub.py` of HTTP.
Everything here may take seconds on a slow disk, so the app calls it off its own thread:

- `registry.load_registry()`: the named pairs of `models.toml`, the user's merged in.
- `discovery.discover(...)`: the GGUFs of this machine, each with facts or a verdict.
- `local.status(...)`: which files of a pair are here, and which are missing.
- `ranking.rank_drafts(...)`: drafts for a target by predicted speedup, refusals with reasons.
- `naming.resolve(...)`: what `-m NAME` stands for.
- `download.download(...)`: a file from the Hub; `hub.py` speaks its protocol.
"""
