"""The ladder: the history of LLM serving in eight small programs, each on the engine's own models and kernels.

Start at `naive_recompute.py`; `ladder.py` names them all, `workbench.py` is what they stand on, and the pages under
docs/lessons say what each is about (`pellucid lessons show N`).
"""
