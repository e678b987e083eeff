"""Lexer, AST, parser, binder."""
