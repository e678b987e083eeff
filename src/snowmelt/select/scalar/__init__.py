"""Record-at-a-time evaluator: the reference semantics."""
