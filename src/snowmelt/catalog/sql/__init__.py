"""DDL front end: lexer, AST, one parser per statement family."""
